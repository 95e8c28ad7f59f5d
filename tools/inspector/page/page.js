'use strict';
// The page's state: which kernel, which panes, which loop, what is lit and kept. The address keeps it: #k=1&panes=source,asm&loop=L2&line=softmax.py:42.

const app = {kernels: [], kinds: {}, kernel: null, panes: [], active: null, loop: null, pinned: null, lit: null, chosen: null};

// --- panes -----------------------------------------------------------------------------------------------------------

// What is shown where nothing was chosen: as many columns as the screen holds.
function usual(kernel) {
  const wide = innerWidth, gpu = kernel.sides[0].gpu, kinds = ['source', 'asm'];
  if (wide >= 1100 && (wide >= 1800 || kernel.sides.length === 1)) kinds.push('plan');
  if (wide >= (gpu ? 1600 : 1800)) kinds.push(kernel.panes.some(p => p.kind === 'ptx') ? 'ptx' : 'llir');
  if (wide >= 2300) kinds.push(gpu ? 'ttgir' : 'ttir');
  const loop = ranked(kernel)[0], about = p => loop ? loop.keys.findIndex(key => p.byKey.has(key)) : -1;  // of several sources the one that the hottest loop is of
  const sources = kernel.panes.filter(p => p.kind === 'source'), best = sources.filter(p => about(p) >= 0 || p.own).sort((a, b) => !!b.own - !!a.own || (about(a) < 0) - (about(b) < 0) || about(a) - about(b))[0] || sources[0];
  return kernel.panes.filter(p => kinds.includes(p.kind) && (p.kind !== 'source' || p === best)).map(p => p.id);
}

const isShown = pane => app.shown.includes(pane.id);
const shownPanes = () => app.panes.filter(isShown);

function layout() {
  const columns = [];
  for (const pane of shownPanes()) {  // a plan is short, and about the source: it stands below that
    const last = columns[columns.length - 1];
    if (pane.kind === 'plan' && last && last[0].kind === 'source') last.push(pane);
    else columns.push([pane]);
  }
  byId('panes').replaceChildren(...columns.map(panes => {
    const made = node('div', {className: 'column'}, ...panes.map(p => p.box));
    made.classList.toggle('code', panes[0].kind === 'asm');
    return made;
  }));
  for (const pane of shownPanes()) { pane.window = null; pane.draw(); pane.view(); }
  byId('switches').replaceChildren(...app.panes.map((pane, n) => {
    const made = node('button', {type: 'button', onclick: () => toggle(n)}, n < 9 ? node('kbd', {textContent: n + 1}) : null, ` ${pane.title()}`);
    made.setAttribute('aria-pressed', isShown(pane));
    if (n < 9) made.setAttribute('aria-keyshortcuts', n + 1);
    return made;
  }));
}

function toggle(n) {
  const pane = app.panes[n];
  if (!pane || isShown(pane) && app.shown.length === 1) return;
  const tops = shownPanes().map(p => [p, p.text.scrollTop]), held = document.activeElement && document.activeElement.closest('#switches');
  app.chosen = app.shown = app.panes.map(p => p.id).filter(id => (id === pane.id) !== app.shown.includes(id));
  layout();
  for (const [p, top] of tops) p.text.scrollTop = top;
  if (isShown(pane)) reveal([pane]);
  if (held) byId('switches').children[n].focus();
  if (!isShown(app.active)) app.active = shownPanes().at(-1);
  save();
}

// The loop of a side that goes with the one that is looked at: itself, else the one with most of its source lines, else the hottest.
function loopOf(side) {
  if (!app.loop || app.loop.side === side) return app.loop;
  const alike = l => l.keys.filter(k => app.loop.keys.includes(k)).length / Math.max(1, l.keys.length, app.loop.keys.length);
  return ranked(app.kernel).filter(l => l.side === side).reduce((best, l) => !best || alike(l) > alike(best) ? l : best, null);
}

// Scrolls panes to what is kept, else to the loop.
function reveal(panes, near = false) {
  for (const pane of panes) {
    const loop = loopOf(pane.data.side), keys = app.pinned !== null ? [app.pinned] : loop ? loop.keys : [];
    const fold = pane.data.folds.find(f => f.loop && f.loop === loop);
    const line = app.pinned === null && pane.kind === 'asm' ? (fold ? first(pane, loop) : null) : keys.map(k => bestLine(pane.data, k, loop)).find(x => x !== null);
    pane.show(line, near, app.pinned === null && pane.kind === 'asm' ? 3 : null);
  }
}

// The first line of a loop in the assembly: of its pieces the one with most lines.
function first(pane, loop) {
  const folds = pane.data.folds.filter(f => f.loop === loop);
  return folds.reduce((a, b) => b.last - b.first > a.last - a.first ? b : a).first;
}

// --- kernels and loops -----------------------------------------------------------------------------------------------

function choose(kernel) {
  const wanted = app.chosen || [];
  app.kernel = prepared(kernel);
  app.panes = kernel.panes.map(data => new Pane(kernel, data));
  app.shown = kernel.panes.map(p => p.id).filter(id => wanted.includes(id));
  if (!app.shown.length) app.shown = usual(kernel);
  app.active = app.panes.find(p => p.kind === 'asm');
  Object.assign(app, {pinned: null, lit: null});
  byId('title').replaceChildren(`${kernel.name} `, ...kernel.sides.flatMap((s, n) => [n ? ' and ' : '', node('small', {textContent: `${s.target}, ${s.backend} `}), badge(s.verdict)]));
  byId('facts').replaceChildren(...kernel.sides.flatMap((s, n) => factsOf(kernel, s, n)));
  byId('table').replaceChildren(loopTable(kernel, loop => look(loop, true)));
  [...byId('kernels').querySelectorAll('tbody tr')].forEach((tr, n) => current(tr, app.kernels[n] === kernel));
  layout();
  search.find();
  look(ranked(kernel)[0] || null);
  detail(null);
}

function current(tr, is) {
  tr.classList.toggle('current', is);
  if (is) tr.setAttribute('aria-current', 'true'); else tr.removeAttribute('aria-current');
}

function factsOf(kernel, side, n) {
  const said = Object.entries(side.facts).filter(([, x]) => x !== null && typeof x !== 'object').map(([k, x]) => `${k} ${short(x)}`);
  for (const [, x] of Object.entries(side.facts)) if (x && typeof x === 'object') said.push(x.words || Object.entries(x).map(([k, v]) => `${k.replaceAll('_', ' ')} ${short(v)}`).join(', '));
  const strong = typeof side.share === 'number' ? [node('b', {textContent: `${percent(side.share)} of the work is vector`}), ', '] : [];
  const words = [side.run, ...said, `unknown instructions ${percent(side.unknown || 0)}`, side.remark, side.bounds].filter(Boolean).join(', ');
  return [n ? node('br') : '', kernel.sides.length > 1 ? `${side.target}: ` : '', ...strong, words];
}

// Makes a loop the one that is looked at: the card, the table's row, its lines in all panes, all panes scrolled to it.
function look(loop, keep = false) {
  app.loop = loop;
  if (!keep) pin(null, false);
  else if (app.pinned !== null) pin(null, false);
  for (const pane of app.panes) {
    const here = loopOf(pane.data.side);
    if (pane.kind === 'asm') pane.mark('here', pane.data.folds.filter(f => here && f.loop === here).flatMap(f => Array.from({length: f.last - f.first}, (_, k) => f.first + k)));
    else pane.markKeys('here', here ? here.keys : []);
  }
  const rows = ranked(app.kernel);
  [...byId('table').querySelectorAll('tbody tr')].forEach((tr, n) => {
    current(tr, rows[n] === loop);
    const box = byId('table'), top = tr.offsetTop - tr.offsetHeight - 2;
    if (rows[n] === loop && (top < box.scrollTop || tr.offsetTop + tr.offsetHeight > box.scrollTop + box.clientHeight)) box.scrollTop = top;
  });
  const cards = rows.filter(l => l === loop || l.hot).map(l => { const made = loopCard(app.kernel, l, pinLine); made.hidden = l !== loop; return made; });
  byId('card').replaceChildren(...cards, ...(app.kernel.pair ? [pairTable(app.kernel.pair)] : []));
  reveal(shownPanes());
  save();
}

function step(by) {
  const hot = ranked(app.kernel).filter(l => l.hot), at = hot.indexOf(app.loop);
  if (hot.length) look(hot[(at + by + hot.length) % hot.length], true);
  const pane = app.panes.find(p => isShown(p) && p.kind === 'asm' && app.loop && p.data.side === app.loop.side);
  if (pane && app.loop && pane.data.folds.some(f => f.loop === app.loop)) stand(pane, pane.next(first(pane, app.loop) - 1 < 0 ? 0 : first(pane, app.loop) - 1, 1) ?? first(pane, app.loop), false);
}

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
  if (what) byId('detail').replaceChildren(node('b', {textContent: what.name}), what.meaning ? ` ${what.meaning}. ` : ' ', node('span', {textContent: what.facts.map(([k, x]) => k === 'kind' ? x : ['unit', 'element', 'width', 'masked'].includes(k) ? x : `${k} ${x}`).join(' · ')}));
  else byId('detail').textContent = pane && line !== null ? keysOf(pane, line).map(k => app.kernel.places[k]).join(', ') || pane.data.lines[line].trim().slice(0, 200) : 'The pointer lights what belongs together, a click keeps it. ? lists the keys.';
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
  const pane = app.active, loop = pane.data.folds.find(f => f.loop === app.loop && app.loop);
  const line = pane.cursor !== null ? pane.next(pane.cursor, by) : pane.kind === 'asm' && loop ? pane.next(Math.max(0, first(pane, app.loop) - 1), 1) : pane.next(lineAtTop(pane), 1);
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
  Enter: () => { const keys = app.active.cursor === null ? [] : keysOf(app.active, app.active.cursor); if (keys.length) pin(app.pinned === keys[0] ? null : keys[0], true, app.active); },
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

function save() {
  const said = {k: app.kernels.indexOf(app.kernel) || '', panes: app.chosen ? app.chosen.join(',') : '', loop: app.loop && app.loop !== ranked(app.kernel)[0] ? `${app.loop.side ? 'b-' : ''}${app.loop.id}` : '',
                line: app.pinned !== null ? app.kernel.places[app.pinned] : '', theme: byId('theme').value};
  const part = Object.entries(said).filter(([, x]) => x !== '').map(([k, x]) => `${k}=${encodeURIComponent(x).replaceAll('%2C', ',').replaceAll('%3A', ':')}`).join('&');
  try { history.replaceState(null, '', part ? `#${part}` : location.pathname + location.search); } catch { /* a page in a frame has no address of its own */ }
}

function load() {
  const said = new URLSearchParams(location.hash.slice(1)), kernel = app.kernels[+said.get('k')] || app.kernels[0];
  app.chosen = said.get('panes') ? said.get('panes').split(',') : null;
  byId('theme').value = ['light', 'dark'].includes(said.get('theme')) ? said.get('theme') : '';
  paint();
  const loop = said.get('loop'), line = said.get('line');
  choose(kernel);
  const found = loop && kernel.loops.find(l => `${l.side ? 'b-' : ''}${l.id}` === loop);
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
window.addEventListener('beforeprint', () => { for (const pane of shownPanes()) pane.draw(true); });
window.addEventListener('afterprint', () => { for (const pane of shownPanes()) { pane.window = null; pane.draw(); } });
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
