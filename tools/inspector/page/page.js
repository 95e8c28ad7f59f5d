'use strict';
// What the pointer, keys and the address do: lines that are lit and kept, and #k=1&panes=source,asm&loop=L2&line=softmax.py:42.

// --- what is lit and kept --------------------------------------------------------------------------------------------

const keysOf = (pane, line) => line === null ? [] : pane.data.keys[line];

function light(keys) {
  const said = keys.join();
  if (said === app.lit) return;
  app.lit = said;
  for (const pane of app.panes) pane.markKeys('lit', keys);
}

function pin(key, scroll = true, from = null) {
  app.pinned = key;
  for (const pane of app.panes) pane.markKeys('pin', key === null ? [] : [key]);
  if (scroll && key !== null) for (const pane of shownPanes()) if (pane !== from) pane.show(bestLine(pane.data, key, loopOf(pane.data.side)));
  if (scroll) save();
}

function pinLine(name) {
  const key = app.kernel.places.indexOf(name);
  if (key >= 0) pin(key);
}

// Puts the cursor on a line: it is said below, lights what belongs to it, and the other panes follow.
function stand(pane, line, follow = true) {
  for (const p of app.panes) if (p !== pane) p.point(null);
  app.active = pane;
  pane.show(line, true);
  pane.point(line);
  const keys = keysOf(pane, line);
  light(keys);
  if (follow && keys.length) for (const p of shownPanes()) if (p !== pane) p.show(bestLine(p.data, keys[0], loopOf(p.data.side)), true);
  detail(pane, line);
}

function detail(pane, line) {
  const what = pane && line !== null ? described(app.kernel, pane.data, line, app.kinds) : null;
  const bare = ['kind', 'unit', 'element', 'width', 'masked'], says = ([k, x]) => bare.includes(k) ? x : `${k} ${x}`, box = byId('detail');
  if (what) {
    box.replaceChildren(node('b', {textContent: what.name}), what.meaning ? ` ${what.meaning}. ` : ' ', what.facts.map(says).join(' · '));
  } else if (pane && line !== null) {
    box.textContent = keysOf(pane, line).map(k => app.kernel.places[k]).join(', ') || pane.data.lines[line].trim().slice(0, 200);
  } else box.textContent = 'The pointer lights what belongs together, a click keeps it. ? lists the keys.';
}

function rowAt(event) {
  const made = event.target.closest && event.target.closest('.row'), box = made && made.closest('.pane');
  const pane = box && app.panes.find(p => p.box === box);
  return pane ? {pane, made, line: made.dataset.r === undefined ? null : +made.dataset.r} : null;
}

byId('panes').addEventListener('mouseover', event => {
  const at = rowAt(event);
  light(at ? keysOf(at.pane, at.line) : []);
  tip.wait(at && at.line !== null ? described(app.kernel, at.pane.data, at.line, app.kinds) : null, at && at.made, event.clientX);
});
byId('panes').addEventListener('mouseleave', () => { light([]); tip.hide(); });
byId('panes').addEventListener('scroll', () => tip.hide(), {capture: true, passive: true});
byId('panes').addEventListener('click', event => {
  const at = rowAt(event);
  if (!at || String(getSelection()).trim()) return;
  if (at.made.dataset.fold !== undefined) {
    const k = +at.made.dataset.fold, loop = at.pane.data.folds[k].loop;
    at.pane.toggle(k);
    const again = at.pane.sheet.querySelector(`[data-fold="${k}"]`);
    if (again) again.focus({preventScroll: true});
    return;
  }
  tip.hide();
  const keys = keysOf(at.pane, at.line), key = keys.length ? keys[0] : null;
  stand(at.pane, at.line, false);
  if (key !== null) pin(app.pinned === key ? null : key, true, at.pane);
});
byId('panes').addEventListener('focusin', event => { const pane = app.panes.find(p => p.text === event.target); if (pane) app.active = pane; });

// --- keys ------------------------------------------------------------------------------------------------------------

function walk(by) {
  const pane = app.active, start = pane.kind === 'asm' ? first(pane, app.loop) : null;
  const line = pane.cursor !== null ? pane.next(pane.cursor, by) : pane.from(start ?? lineAtTop(pane));
  if (line !== null) stand(pane, line);
}

const lineAtTop = pane => pane.shown.slice(Math.floor(pane.text.scrollTop / PITCH)).find(n => n >= 0) ?? 0;

function across(by) {
  const shown = shownPanes(), pane = shown[(shown.indexOf(app.active) + by + shown.length) % shown.length];
  pane.text.focus({preventScroll: true});
  app.active = pane;
  const key = app.lit ? +app.lit.split(',')[0] : null, line = key === null ? pane.cursor : bestLine(pane.data, key, app.loop);
  if (line !== null && line !== undefined) stand(pane, line, false);
}

const KEYS = {
  j: () => walk(1), k: () => walk(-1), n: () => step(1), p: () => step(-1), h: () => across(-1), l: () => across(1),
  '/': () => { byId('search').focus(); byId('search').select(); }, '?': () => byId('help').showModal(),
  o: () => { const k = app.active.cursor === null ? -1 : app.active.data.foldOf[app.active.cursor]; if (k >= 0) app.active.toggle(k); },
  Enter: () => {
    const [key] = keysOf(app.active, app.active.cursor);
    if (key !== undefined) pin(app.pinned === key ? null : key, true, app.active);
  },
  '[': () => turn(-1), ']': () => turn(1),
  Escape: () => {
    tip.hide();
    if (search.field.value) return search.clear();
    if (app.pinned !== null) return pin(null);
    for (const pane of app.panes) pane.point(null);
    light([]);
    detail(null);
  },
};
const turn = by => choose(app.kernels[(app.kernels.indexOf(app.kernel) + by + app.kernels.length) % app.kernels.length]);

document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.altKey || event.metaKey || byId('help').open || event.target.closest?.('input, select')) return;
  if (event.key === 'Enter' && event.target.closest?.('button, a')) return;
  const does = KEYS[event.key] || (/^[1-9]$/.test(event.key) ? () => toggle(+event.key - 1) : null);
  if (!does) return;
  event.preventDefault();
  does();
});

// --- the address, the colours, paper -----------------------------------------------------------------------------------

const loopName = loop => `${loop.side ? 'b-' : ''}${loop.id}`;

function save() {
  const said = {k: app.kernels.indexOf(app.kernel) || '', panes: app.chosen ? app.chosen.join(',') : '',
                loop: app.loop && app.loop !== ranked(app.kernel)[0] ? loopName(app.loop) : '',
                line: app.pinned !== null ? app.kernel.places[app.pinned] : '', theme: byId('theme').value};
  const quoted = x => encodeURIComponent(x).replaceAll('%2C', ',').replaceAll('%3A', ':');
  const part = Object.entries(said).filter(([, x]) => x !== '').map(([k, x]) => `${k}=${quoted(x)}`).join('&');
  try {
    history.replaceState(null, '', part ? `#${part}` : location.pathname + location.search);
  } catch { /* a page in a frame has no address of its own */ }
}

function load() {
  const said = new URLSearchParams(location.hash.slice(1)), kernel = app.kernels[+said.get('k')] || app.kernels[0];
  app.chosen = said.get('panes') ? said.get('panes').split(',') : null;
  byId('theme').value = ['light', 'dark'].includes(said.get('theme')) ? said.get('theme') : '';
  paint();
  const loop = said.get('loop'), line = said.get('line');
  choose(kernel);
  const found = loop && kernel.loops.find(l => loopName(l) === loop);
  if (found) look(found);
  if (line) pinLine(line);
}

function paint() {
  const theme = byId('theme').value;
  if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
}

const search = new Search(() => ({shown: shownPanes(), active: app.active, stand: (pane, line) => stand(pane, line, false)}));
byId('theme').addEventListener('change', () => { paint(); save(); });
byId('keys').addEventListener('click', () => byId('help').showModal());
window.addEventListener('hashchange', load);
window.addEventListener('beforeprint', () => {
  cards(ranked(app.kernel).filter(l => l === app.loop || l.hot).slice(0, 50));
  for (const pane of shownPanes()) pane.draw(true);
});
window.addEventListener('afterprint', () => {
  cards(app.loop ? [app.loop] : []);
  for (const pane of shownPanes()) { pane.window = null; pane.draw(); }
});
let width = innerWidth, later = 0;
window.addEventListener('resize', () => {
  clearTimeout(later);
  later = setTimeout(() => {
    if (!app.chosen && innerWidth !== width) {
      app.shown = usual(app.kernel);
      if (!isShown(app.active)) app.active = app.panes.find(p => p.kind === 'asm');
      layout();
      reveal(shownPanes());
    } else for (const pane of shownPanes()) { pane.draw(); pane.view(); }
    width = innerWidth;
  }, 100);
});

fillHelp();
unpack().then(data => {
  Object.assign(app, data);
  if (app.kernels.length > 1) {
    byId('kernels').hidden = false;
    byId('kernels').replaceChildren(kernelTable(app.kernels, choose));
  }
  load();
  document.documentElement.dataset.ready = 'true';
});
