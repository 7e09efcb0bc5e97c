import pytest

from smmil.viewer.data import ViewerData


@pytest.fixture(autouse=True)
def _viewers_are_closed(monkeypatch):
    """Closes what a test opened: a folder left to the garbage collector fails whichever test runs next."""
    opened, make = [], ViewerData.__init__

    def recorded(self, *args, **options):
        make(self, *args, **options)
        opened.append(self)

    monkeypatch.setattr(ViewerData, "__init__", recorded)
    yield
    for viewer in opened:
        viewer.close()
