"""What every DICOM export says about itself: where it comes from, that nobody is named in it, and no time of day."""

import unicodedata
from typing import Any

from smmil.exports.case import Case
from smmil.exports.dicom_source import derived_uid
from smmil.exports.provenance import in_words, plain

# Dates are compulsory; a fixed one keeps the bytes reproducible and is nobody's.
_DATE, _TIME = "20000101", "000000"
_BASIC_PROFILE = ("113100", "Basic Application Confidentiality Profile")
_RETAINED_UIDS = ("113110", "Retain UIDs Option")


def finish(made: Any, case: Case) -> None:
    """Provenance, de-identification marks, and fixed values in place of times and random identifiers."""
    made.DerivationDescription = derivation(case)
    made.InstanceCreationDate = made.ContentDate = made.SeriesDate = _DATE
    made.InstanceCreationTime = made.ContentTime = made.SeriesTime = _TIME
    for equipment in made.get("ContributingEquipmentSequence", ()):
        equipment.pop("ContributionDateTime", None)
    _settle_dimensions(made)
    if case.deidentify:
        _mark_deidentified(made, case.keep_uids)


def derivation(case: Case) -> str:
    """Model, weights, kind of score and the rest, in at most 1024 characters."""
    return _text(in_words(case.facts), 1024)


def short(text: str) -> str:
    """Text for a field of at most 64 characters; a backslash would divide it in two."""
    return _text(text, 64)


def _text(text: str, longest: int) -> str:
    return plain(unicodedata.normalize("NFC", text).replace("\\", "/"), longest).strip() or "unknown"


def _settle_dimensions(made: Any) -> None:
    """highdicom draws this identifier at random; here it follows from that of the file."""
    uid = derived_uid("dimensions of", str(made.SOPInstanceUID))
    for item in (*made.DimensionOrganizationSequence, *made.get("DimensionIndexSequence", ())):
        item.DimensionOrganizationUID = uid


def _mark_deidentified(made: Any, keep_uids: bool) -> None:
    """PS3.15 annex E: that identities were removed, and by which profile."""
    codes = (_BASIC_PROFILE, _RETAINED_UIDS) if keep_uids else (_BASIC_PROFILE,)
    made.PatientIdentityRemoved = "YES"
    made.DeidentificationMethodCodeSequence = [_code(*code) for code in codes]
    made.DeidentificationMethod = "derived object; source headers reduced to geometry"
    made.LongitudinalTemporalInformationModified = "REMOVED"


def _code(value: str, meaning: str) -> Any:
    from pydicom.dataset import Dataset

    code: Any = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "DCM", meaning
    return code
