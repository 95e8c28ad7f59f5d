'use strict';
// The list of kernels, the table of loops, the card of the loop that is looked at, and the comparison of two sides.

const badge = verdict => node('span', {className: `v ${verdict || 'none'}`, textContent: verdict || 'nothing to judge'});
const bar = share => {
  const made = node('span', {className: 'bar'}, node('i'));
  made.firstChild.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  made.setAttribute('aria-hidden', 'true');
  return made;
};

const part = x => [bar(x), node('span', {className: 'part', textContent: percent(x)})];
const hasShare = side => typeof side.share === 'number';

function tableOf(columns, rows, pressed) {
  const heading = c => node('th', {scope: 'col', className: c.left ? 'left' : '', title: c.about || '', textContent: c.name});
  const head = node('tr', {}, ...columns.map(heading));
  const body = rows.map((row, n) => {
    const cells = columns.map((c, k) => {
      const value = c.of(row), cell = node('td', {className: c.left ? 'left' : ''});
      const said = value === undefined || value === null ? '' : c.say ? c.say(value, row) : short(value);
      if (k === 0 && pressed) cell.append(node('button', {type: 'button', onclick: () => pressed(row)}, said));
      else cell.append(...(Array.isArray(said) ? said : [said]));
      return cell;
    });
    const made = node('tr', {}, ...cells);
    if (pressed) made.addEventListener('click', event => { if (!event.target.closest('button')) pressed(row); });
    made.dataset.n = n;
    return made;
  });
  return node('table', {}, node('thead', {}, head), node('tbody', {}, ...body));
}

// --- the list of kernels ---------------------------------------------------------------------------------------------

function kernelTable(kernels, pressed) {
  const several = kernels.some(k => k.sides.length > 1), extra = [...new Set(kernels.flatMap(k => Object.keys(k.ranked)))];
  const each = say => k => k.sides.flatMap((s, n) => [n ? ' | ' : '', say(s)]);
  const columns = [
    {name: 'kernel', left: true, of: k => k.name},
    {name: several ? 'targets' : 'target', left: true, of: k => k.sides.map(s => s.target).join(' | ')},
    {name: 'verdict', left: true, of: k => k, say: each(s => badge(s.verdict))},
    ...extra.map(name => ({name, of: k => k.ranked[name], left: name === 'called', say: x => name === 'share' && x <= 1 ? part(x) : short(x)})),
    {name: 'vector work', of: k => k.sides.some(hasShare) ? k : null, say: each(s => hasShare(s) ? percent(s.share) : '')},
    {name: 'hot loops', of: k => k.loops.filter(l => l.hot).length},
  ].filter(c => kernels.some(k => { const x = c.of(k); return x !== undefined && x !== null; }));
  return tableOf(columns, kernels, pressed);
}

// --- the table of loops ----------------------------------------------------------------------------------------------

const figure = (name, about, key, say) => ({name, about, of: l => l[key], say, drop: x => x === undefined || x === null || x === 0});
const LOOPS = [
  {name: 'loop', left: true, about: 'its number, as in the assembly and in --json', of: l => l.id},
  {name: 'lines', left: true, of: l => l.where || l.label},
  {name: 'verdict', left: true, of: l => l, say: l => [badge(l.verdict), l.tail ? node('small', {textContent: ' tail'}) : '']},
  {name: 'work', about: 'estimated share of the kernel\'s work', of: l => l.heat, say: part},
  {name: 'trips', about: 'how often it is gone through', of: l => l.trips},
  {name: 'cycles', about: 'for each time through, by LLVM\'s model of the target', of: l => l.bound && l.bound.cycles},
  {name: 'of peak', about: 'share of the target\'s peak', of: l => l.bound && l.bound.peak_share, say: percent},
  {name: 'coalescing', about: 'bytes that a request needs of those that it moves', of: l => l.memory && l.memory.coalescing, say: percent},
  {name: 'why', left: true, about: 'what stands in its way', of: l => (l.causes || []).map(c => c.name).join(', ')},
  figure('instructions', 'in the loop', 'instructions'),
  {...figure('vector', 'share of the work on vector or matrix units', 'vector', x => percent(x)), drop: x => x === undefined || x === null},
  figure('fma', 'share of arithmetic that multiplies and adds in one', 'fma', x => percent(x)),
  figure('load', 'bits of the narrowest load', 'load_bits'), figure('store', 'bits of the narrowest store', 'store_bits'),
  figure('B/access', 'bytes of an access', 'bytes_per_access'), figure('matrix', 'instructions on tensor cores and their like', 'matrix'),
  figure('gathers', 'accesses with an address for each element', 'gathers'), figure('spills', 'accesses of stack slots', 'spills'),
  figure('conflicts', 'cycles of shared memory beyond the fewest, by the fewest', 'conflicts', x => percent(x)),
  figure('calls', 'of functions', 'calls'), figure('f64', 'fp64 instructions without an fp64 argument', 'f64'),
];

const LISTED = 200;

function loopTable(kernel, pressed) {
  const rows = ranked(kernel), none = x => x === undefined || x === null || x === '', has = c => rows.some(l => !(c.drop || none)(c.of(l)));
  const columns = LOOPS.filter(has), more = rows.length - LISTED;
  if (kernel.sides.length > 1) columns.splice(1, 0, {name: 'of', left: true, of: l => kernel.sides[l.side].target});
  if (!rows.length) return node('p', {className: 'note', textContent: 'No loop that computes or moves data was found: there is nothing to judge.'});
  const made = tableOf(columns, rows.slice(0, LISTED), pressed);
  if (more > 0) made.append(node('caption', {textContent: `${more.toLocaleString('en')} more loops are in the assembly.`}));
  return made;
}

// --- one loop --------------------------------------------------------------------------------------------------------

function loopCard(kernel, loop, pinned) {
  const side = kernel.sides[loop.side], said = [loop.label !== 'body' ? loop.label : '', loop.where].filter(Boolean).join(' ');
  const facts = [`${percent(loop.heat)} of the estimated work`];
  if (loop.trips) facts.push(`${short(loop.trips)} times through`);
  const made = node('article', {className: 'card'}, node('h2', {}, `${loop.id} `, node('small', {textContent: said}), ' ', badge(loop.verdict)),
                    node('p', {className: 'note', textContent: (kernel.sides.length > 1 ? `${side.target}: ` : '') + facts.join(', ')}));
  made.dataset.loop = loop.index;
  if (loop.bound) made.append(...boundOf(loop.bound));
  if (loop.memory) made.append(...memoryOf(loop.memory));
  for (const cause of loop.causes || []) {
    const line = cause.line ? node('button', {type: 'button', className: 'link', textContent: cause.line, onclick: () => pinned(cause.line)}) : null;
    made.append(node('dl', {className: 'cause'}, node('dt', {textContent: 'why'}), node('dd', {}, cause.text, line ? ' ' : '', line),
                     ...(cause.plan ? [node('dt', {textContent: 'plan'}), node('dd', {textContent: cause.plan})] : []),
                     node('dt', {textContent: 'do'}), node('dd', {className: 'do', textContent: cause.remedy})));
  }
  const fine = loop.tail ? 'It takes what its main loop leaves.' : loop.verdict === 'VECTOR' ? 'Nothing stands in its way.' : '';
  if (!(loop.causes || []).length && fine) made.append(node('p', {className: 'note', textContent: fine}));
  return made;
}

// What limits a loop: in words, and as bars of cycles beside those that it takes.
function boundOf(bound) {
  const limits = Object.entries(bound.limits || {}).filter(([, x]) => typeof x === 'number').sort((a, b) => b[1] - a[1]);
  const bars = [['a turn takes', bound.cycles], ...limits], most = Math.max(...bars.map(([, x]) => x)) || 1;
  const said = [].concat(bound.words || []).filter(Boolean), more = said.slice(1);
  if (bound.elements) more.push(`${short(bound.elements)} elements a turn, ${short(bound.cycles / bound.elements)} cycles each`);
  if (!said.length) said.push(`${short(bound.cycles)} cycles a turn${bound.model ? `, by LLVM's model of ${bound.model}` : ''}`);
  return [node('p', {className: 'bound'}, node('b', {textContent: 'bound '}), said[0]),
          node('dl', {className: 'limits'}, ...bars.map(limit(most))),
          node('p', {className: 'note', textContent: more.join('; ')})];
}

const limit = most => ([name, x]) => node('div', {}, node('dt', {textContent: name}), node('dd', {}, bar(x / most), ` ${short(x)}`));

// What a warp's requests ask of a GPU's memory.
function memoryOf(m) {
  const said = [];
  const sectors = m.sectors ? ` in ${short(m.sectors)} sectors${m.sector ? ` of ${m.sector}` : ''}` : '';
  if (m.bytes_per_request) said.push(`${short(m.bytes_per_request)} bytes a request${sectors}`);
  if (typeof m.coalescing === 'number') said.push(`coalescing ${percent(m.coalescing)}: the share of what is moved that is needed`);
  const best = m.best && m.best > m.bytes_per_request ? `, ${short(m.best)} bytes a request at best` : '';
  if (m.width_bits) said.push(`${short(m.width_bits)} bits a thread${best}`);
  if (typeof m.conflicts === 'number') said.push(m.conflicts ? `bank conflicts cost ${percent(m.conflicts)} more` : 'no bank conflicts');
  return said.length ? [node('p', {className: 'bound'}, node('b', {textContent: 'memory '}), said.join('; '))] : [];
}

// --- two sides -------------------------------------------------------------------------------------------------------

function pairTable(pair) {
  const sides = [pair.a, pair.b], row = (name, of) => [name.replaceAll('_', ' '), ...sides.map(of)];
  const kinds = [...new Set(sides.flatMap(s => Object.keys(s.kinds)))].map(k => row(`${k} instructions`, s => s.kinds[k] || 0));
  const rows = [row('verdict', s => s.verdict || ''), ...['hot_loops', 'instructions'].map(k => row(k, s => s[k])),
                ...Object.keys(pair.a.figures).map(k => row(k, s => s.figures[k])), ...kinds.sort((x, y) => y[1] + y[2] - x[1] - x[2])]
    .filter(r => r.slice(1).some(x => x !== null && x !== undefined));
  const columns = sides.map((s, n) => ({name: `${s.target} ${s.backend}`, of: r => r[n + 1]}));
  const made = tableOf([{name: 'hot loops, the worst figure', left: true, of: r => r[0]}, ...columns], rows);
  [...made.querySelectorAll('tbody tr')].forEach((tr, n) => tr.classList.toggle('differs', rows[n][1] !== rows[n][2]));
  return node('article', {className: 'card pair'}, made);
}
