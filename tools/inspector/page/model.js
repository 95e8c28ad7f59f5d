'use strict';
// What the page holds: kernels, their loops and panes. A pane's lines are linked to those of others by keys, numbers of source lines.

const PITCH = 18;  // px of every line, here and in page.css

function node(tag, props = {}, ...children) {
  const made = Object.assign(document.createElement(tag), props);
  made.append(...children.filter(c => c !== null && c !== undefined));
  return made;
}

async function unpack() {
  const bytes = Uint8Array.from(atob(document.getElementById('data').textContent), c => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).json();
}

// 0% and 100% only where it is none and all.
function percent(x) {
  if (x > 0 && x < 0.001) return '<0.1%';
  if (x < 1 && x >= 0.995) return `${Math.min(99.9, Math.round(1000 * x) / 10)}%`;
  if (x < 0.05 && x >= 0.0495 || x < 0.95 && x >= 0.945) return `${Math.floor(1000 * x) / 10}%`; // another verdict's share
  return `${x > 0 && x < 0.095 ? (100 * x).toFixed(1) : Math.round(100 * x)}%`;
}

function short(x) {
  if (typeof x !== 'number') return String(x);
  return Number.isInteger(x) || x >= 100 ? Math.round(x).toLocaleString('en') : String(+x.toPrecision(3));
}

// --- a kernel ------------------------------------------------------------------------------------------------------

// Adds to a pane's data what is derived from it: the fold and the loop of each line, its heat from 0 to 1, and the lines of each key.
function prepared(kernel) {
  if (kernel.ready) return kernel;
  kernel.ready = true;
  kernel.loops.forEach((loop, n) => { loop.index = n; loop.heat = loop.heat || 0; });
  for (const pane of kernel.panes) {
    const n = pane.lines.length, offset = kernel.loops.findIndex(l => l.side === pane.side);
    const loopOf = n => n < 0 ? null : kernel.loops[n + offset];
    pane.folds = pane.folds.map(([first, last, title, open, loop]) => ({first, last, title, open: !!open, loop: loopOf(loop)}));
    pane.foldOf = new Int32Array(n).fill(-1);
    pane.folds.forEach((f, k) => pane.foldOf.fill(k, f.first, f.last));
    pane.byKey = new Map();
    pane.keys.forEach((keys, line) => {
      for (const key of keys) {
        if (!pane.byKey.has(key)) pane.byKey.set(key, []);
        pane.byKey.get(key).push(line);
      }
    });
    if (pane.kind === 'asm') warmed(pane);
    if (pane.kind === 'source') pane.c = /\.(c|cc|cpp|cu|cuh|h|hpp)$/.test(pane.title);
    if (pane.kind === 'source' && !pane.c) quoted(pane);
  }
  return kernel;
}

// The heat of a line of assembly: its loop's share of the work, shared among the loop's instructions; the hottest is 1.
function warmed(pane) {
  const counts = new Map();
  pane.what.forEach((w, line) => { const loop = loopAt(pane, line); if (w >= 0 && loop) counts.set(loop, (counts.get(loop) || 0) + 1); });
  const of = line => { const loop = loopAt(pane, line); return loop && counts.get(loop) ? loop.heat / counts.get(loop) : 0; };
  const heat = Float64Array.from(pane.lines, (_, line) => of(line)), most = heat.reduce((a, b) => Math.max(a, b), 0) || 1;
  pane.heat = heat.map(h => h / most);
}

// Lines that begin inside a Python text of several lines.
function quoted(pane) {
  let inside = false;
  pane.quoted = pane.lines.map(line => { const was = inside; if (line.split('"""').length % 2 === 0) inside = !inside; return was || inside; });
}

const loopAt = (pane, line) => pane.foldOf[line] < 0 ? null : pane.folds[pane.foldOf[line]].loop;

// The keys that a pane is shown at a loop by: of its work, where the pane has lines of that, else of all of its code.
function keysIn(data, loop) {
  if (!loop) return [];
  return loop.keys.some(key => data.byKey.has(key)) ? loop.keys : loop.more;
}

// Loops in the order of their table: hot ones, then what takes the rest, each by heat.
function ranked(kernel) {
  const judged = kernel.loops.filter(l => l.hot || l.tail);
  return judged.sort((a, b) => a.side - b.side || !!b.hot - !!a.hot || b.heat - a.heat || a.index - b.index);
}

// The line of a pane that a key is best shown at: one that is mainly about it, in the current loop, else the hottest, else the first.
function bestLine(pane, key, loop) {
  const rank = line => 4 * (pane.keys[line][0] === key) + 2 * (!!loop && loopAt(pane, line) === loop) + (pane.heat ? pane.heat[line] : 0);
  return (pane.byKey.get(key) || []).reduce((best, line) => best === null || rank(line) > rank(best) ? line : best, null);
}

// --- words about a line ----------------------------------------------------------------------------------------------

const LANE = /^[a-z]+(\d+)/;

// What is known of a line of assembly: {name, meaning, facts: [[name, text]]}; null where it is no instruction.
function described(kernel, pane, line, kinds) {
  const said = pane.says && pane.says[line] >= 0 ? pane.words[pane.says[line]] : '';
  if (!pane.what) return said ? {name: pane.lines[line].trim().split(/\s/)[0], meaning: said, facts: []} : null;
  if (pane.what[line] < 0) return null;
  const [name, , kind, unit, element, bits, loads, stores, masked, spill] = pane.kinds[pane.what[line]];
  const gpu = kernel.sides[pane.side].gpu, each = gpu ? ' a thread' : '', lane = LANE.exec(element), loop = loopAt(pane, line);
  const lanes = lane && unit === 'vector' && !gpu && bits > +lane[1] ? `, ${bits / +lane[1]} elements` : '';
  const facts = [['kind', `${kind}: ${kinds[kind] || ''}`],
                 ['unit', unit === 'matrix' ? 'matrix' : gpu ? unit === 'scalar' ? 'scalar: once for the warp' : 'vector: the whole warp' : unit]];
  if (element) facts.push(['element', element]);
  if (bits) facts.push(['width', `${bits} bit${each}${lanes}`]);
  if (loads) facts.push(['reads', `${short(loads / 8)} bytes${each}`]);
  if (stores) facts.push(['writes', `${short(stores / 8)} bytes${each}`]);
  if (masked) facts.push(['masked', 'only the elements that a mask picks']);
  if (spill) facts.push(['spill', 'a slot on the stack']);
  if (pane.keys[line].length) facts.push(['source', kernel.places[pane.keys[line][0]]]);
  if (loop) facts.push(['loop', `${loop.id}, ${percent(loop.heat)} of the estimated work`]);
  if (pane.at && pane.at[line] !== null) facts.push(['address', `0x${pane.at[line].toString(16)}`]);
  return {name, meaning: said, facts};
}

// --- words in a line -------------------------------------------------------------------------------------------------

const PYTHON = 'False|None|True|and|as|assert|break|class|continue|def|del|elif|else|except|for|from|global|if|import|in|is|lambda|not|or|pass|raise|'
  + 'return|try|while|with|yield';
const C = '#\\w+|auto|bool|break|case|char|class|const|continue|do|double|else|float|for|if|int|long|namespace|return|short|static|struct|switch|'
  + 'template|typename|unsigned|using|void|while|__global__|__device__|__shared__|__restrict__';
const IR = 'define|declare|call|load|store|br|phi|ret|getelementptr|fmul|fadd|fsub|fdiv|fcmp|sext|zext|fpext|fptrunc|icmp|select|add|mul|sub|'
  + 'shufflevector|insertelement|extractelement|bitcast|tail|module';
const QUOTED = `("(?:[^"\\\\]|\\\\.)*"|'(?:[^'\\\\]|\\\\.)*')`;
const WORDS = {
  source: RegExp(`(#.*)|${QUOTED}|\\b(${PYTHON})\\b|(@[\\w.]+)`, 'g'),
  c: RegExp(`(//.*)|${QUOTED}|(?<!\\w)(${C})\\b|(\\b\\w+(?=::))`, 'g'),
  ir: RegExp(`((?:\\/\\/|;).*)|("[^"]*")|\\b((?:[a-z_]\\w*\\.)+[a-z_]\\w*|(?:${IR})\\b(?! *=))|([%@!#$][\\w.]+)`, 'g'),
  plan: /(checked at launch:.*)|(\bbecause .*)|\b(reduce|store|product|put|keeps|for|scan|line \d+|scratch)\b|(\w*@\d+)/g,
};
const CLASSES = ['', 't-rem', 't-str', 't-key', 't-name'];

// The parts of a line of text, as nodes: remarks, strings, words, names.
function painted(kind, text) {
  const out = [], words = WORDS[kind] || WORDS.ir;
  let at = 0;
  words.lastIndex = 0;
  for (const hit of text.matchAll(words)) {
    const which = hit.findIndex((part, n) => n > 0 && part !== undefined);
    if (hit.index > at) out.push(text.slice(at, hit.index));
    out.push(node('span', {className: CLASSES[which], textContent: hit[0]}));
    at = hit.index + hit[0].length;
  }
  out.push(text.slice(at));
  return out;
}
