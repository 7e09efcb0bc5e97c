// Panes that show the same place. Only the one under the hand leads, or they would hold each other back.
export function linkPanes(panes) {
  panes.forEach((pane, i) => { pane.leads = i === 0; });
  for (const from of panes) {
    const lead = () => panes.forEach((pane) => { pane.leads = pane === from; });
    for (const touch of ["pointerenter", "pointerdown", "wheel", "keydown"]) from.stage.addEventListener(touch, lead, true);
    for (const move of ["animation", "animation-finish"]) from.viewer.addHandler(move, () => from.leads && follow(from, panes));
  }
}

function follow(from, panes) {
  const { viewport } = from.viewer;
  for (const { viewer } of panes) {
    if (viewer === from.viewer) continue;
    viewer.viewport.zoomTo(viewport.getZoom(true), null, true);
    viewer.viewport.panTo(viewport.getCenter(true), true);
  }
}
