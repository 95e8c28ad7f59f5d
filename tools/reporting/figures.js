'use strict';
// The five kinds of plot. Each takes the rows that pass the filters and gives panels: {title, rows, height(), draw(panel)}.

const data = JSON.parse(document.getElementById('data').textContent);
const colourOf = backend => data.colours[backend];
const shapeOf = run => data.marks[run % data.marks.length];
const dashOf = run => data.dashes[run % data.dashes.length];
const fits = rows => rows.filter(r => r.status === 'ok');
// The name of what speed-ups are over, where it is one for all of some rows.
const overOf = rows => { const names = new Set(rows.map(r => r.baseline)); return names.size === 1 ? [...names][0] : null; };

function grouped(rows, keyOf) {
  const out = new Map();
  for (const r of rows) {
    const key = keyOf(r);
    if (!out.has(key)) out.set(key, []);
    out.get(key).push(r);
  }
  return [...out.entries()];
}
const geomean = values => Math.exp(values.reduce((sum, v) => sum + Math.log(v), 0) / values.length);
const bytesText = b => prefixed(b, 'B');
const backendsOf = rows => Object.keys(data.colours).filter(b => rows.some(r => r.backend === b));
const byMachine = (rows, draw) => grouped(rows, r => r.run).map(([run, mine]) => draw(run, mine)).filter(p => p);

function timePanels(rows) {
  const usable = fits(rows).filter(r => r.bytes);
  return grouped(usable, r => `${r.op} ${r.dtype}`).map(([title, mine]) => ({title, rows: mine, height: () => 270, draw: panel => {
    const [xs, ys] = panel.axes({range: range(mine.map(r => r.bytes)), label: 'bytes that the op must move', text: bytesText},
                                {range: range(mine.flatMap(r => r.time)), text: timeText});
    const lines = grouped(mine, r => JSON.stringify([r.run, r.backend, r.variant]));
    for (const [, line] of lines) {
      line.sort((a, b) => a.bytes - b.bytes || a.time[1] - b.time[1]);
      const colour = colourOf(line[0].backend), at = (r, k) => `${xs.at(r.bytes).toFixed(1)},${ys.at(r.time[k]).toFixed(1)}`;
      if (line.length > 1) {
        panel.add('polygon', {points: [...line.map(r => at(r, 0)), ...[...line].reverse().map(r => at(r, 2))].join(' '), fill: colour, opacity: .18});
        panel.add('polyline', {points: line.map(r => at(r, 1)).join(' '), fill: 'none', stroke: colour, 'stroke-width': 1.6,
                               'stroke-dasharray': dashOf(line[0].run), class: 'series'});
      }
      for (const r of line) {
        const x = xs.at(r.bytes);
        panel.add('line', {x1: x, x2: x, y1: ys.at(r.time[0]), y2: ys.at(r.time[2]), stroke: colour, opacity: .6});
      }
    }
    for (const r of lines.flatMap(([, line]) => line))
      panel.point(shapeOf(r.run), xs.at(r.bytes), ys.at(r.time[1]), r, colourOf(r.backend), timeText(r.time[1]));
  }}));
}

// Lanes under headings, with one logarithmic axis: what speed-ups and first calls share. groups: [heading, [lane]]; lane(panel, y, xs) draws.
function lanes(title, rows, groups, axis, right) {
  const tall = groups.reduce((sum, [, lane]) => sum + 21 + 15 * lane.length, 0);
  return {title, rows, height: () => tall + 56, draw: panel => {
    const [xs] = panel.axes(axis, null, {left: 10, right, top: 6, bottom: 42});
    let y = 8;
    for (const [heading, list] of groups) {
      panel.add('text', {class: 'strong', x: 2, y: y + 12}, heading);
      y += 25;
      for (const lane of list) { lane(panel, y, xs); y += 15; }
      y -= 4;
    }
  }};
}

function speedPanels(rows) {
  const usable = fits(rows).filter(r => r.speedup && r.backend !== r.baseline);
  const one = new Set(usable.map(r => r.op)).size === 1;  // one op: a bar for each of its cases
  return grouped(usable, r => JSON.stringify([r.run, r.baseline])).map(([, mine]) => {
    const {run, baseline} = mine[0], several = usable.some(r => r.run === run && r.baseline !== baseline);
    const title = data.runs[run].name + (several ? `, over ${baseline}` : '');
    const named = r => one ? `${r.op} ${r.case} ${r.dtype}` : `${r.op} ${r.dtype}`;
    const groups = grouped(mine, named).map(([heading, list]) => [heading, backendsOf(list).map(backend => {
      const its = list.filter(r => r.backend === backend), sound = its.filter(r => !r.noisy), mean = geomean(sound.map(r => r.speedup));
      return (panel, y, xs) => {
        for (const r of its.filter(r => r.noisy)) panel.point(shapeOf(run), xs.at(r.speedup), y, r, colourOf(backend), ratioText(r.speedup), 3.6);
        if (!sound.length) {  // what is noisy is in no bar and no mean
          panel.add('text', {x: panel.width, y: y + 4, 'text-anchor': 'end'}, 'noisy');
          return;
        }
        const [from, to] = [xs.at(1), xs.at(mean)].sort((a, b) => a - b);
        const opacity = sound.length > 1 ? .6 : .8;
        panel.add('rect', {class: 'bar', x: from, y: y - 6, width: Math.max(1, to - from), height: 12, fill: colourOf(backend), opacity});
        panel.add('text', {class: 'strong', x: panel.width, y: y + 4, 'text-anchor': 'end'}, ratioText(mean));
        for (const r of sound) panel.point(shapeOf(run), xs.at(r.speedup), y, r, colourOf(backend), ratioText(r.speedup), 3.6);
      };
    })]);
    const wide = range([0.5, 2, ...mine.map(r => r.speedup)], 4, 1.1);
    const axis = {range: wide, label: `times as fast as ${cut(baseline, 24)} on that machine`, text: x => `${short(x)}x`};
    const made = lanes(title, mine, groups, axis, 52), draw = made.draw;
    made.draw = panel => {
      draw(panel);
      const x = logScale(...axis.range, 10, panel.width - 52, 54).at(1);
      panel.add('line', {class: 'unit', x1: x, x2: x, y1: 6, y2: panel.height - 42});
    };
    return made;
  });
}

function roofPanels(rows) {
  const usable = fits(rows).filter(r => r.bytes && r.flops);
  return grouped(usable, r => JSON.stringify([r.run, r.device])).map(([, mine]) => {
    const {run, device} = mine[0], limits = data.runs[run].limits[device] || {};
    const several = Object.keys(data.runs[run].limits).length > 1 || usable.some(r => r.run === run && r.device !== device);
    const title = data.runs[run].name + (several ? ` (${device})` : '');
    const ceilings = Object.entries(limits).filter(([key]) => key.startsWith('flop_per_s')).map(([key, value]) =>
      [key === 'flop_per_s' ? (device === 'cuda' ? 'fp16 products' : 'fp32 FMA') : key.replace('flop_per_s_', '') + ' products', value]);
    return {title, rows: mine, height: () => 320, draw: panel => {
      const density = r => r.flops / r.bytes, rate = r => r.flops / r.time[1];
      const wide = range([...mine.map(density), ...(limits.bytes_per_s ? ceilings.map(([, f]) => f / limits.bytes_per_s) : [])], 10, 2);
      const top = ceilings.map(([, f]) => f);
      const tall = range([...mine.map(rate), ...top, ...(limits.bytes_per_s ? [2 * wide[0] * limits.bytes_per_s] : [])], 10, 1.6);
      const [xs, ys] = panel.axes({range: wide, label: 'FLOP per byte that must move', text: short},
                                  {range: tall, text: x => prefixed(x, ''), label: 'FLOP/s'}, {left: 70, top: 20});
      const later = [], slope = x => x * limits.bytes_per_s, inside = v => Math.min(ys.high, Math.max(ys.low, v));
      const highest = top.length ? Math.max(...top) : ys.high;
      if (limits.bytes_per_s) {
        const from = Math.max(xs.low, ys.low / limits.bytes_per_s), to = Math.min(xs.high, highest / limits.bytes_per_s);
        if (from < to) {
          panel.add('line', {class: 'roof', x1: xs.at(from), y1: ys.at(inside(slope(from))), x2: xs.at(to), y2: ys.at(inside(slope(to)))});
          const turn = -Math.atan2(ys.at(slope(from)) - ys.at(slope(to)), xs.at(to) - xs.at(from)) * 180 / Math.PI;
          later.push({transform: `translate(${xs.at(from) + 14},${ys.at(slope(from)) - 18}) rotate(${turn.toFixed(1)})`,
                      said: `copy ${prefixed(limits.bytes_per_s, 'B/s')}`});
        }
      }
      for (const [name, value] of ceilings) {
        const from = limits.bytes_per_s ? Math.max(xs.low, value / limits.bytes_per_s) : xs.low;
        if (from < xs.high) panel.add('line', {class: 'roof', x1: xs.at(from), x2: xs.at(xs.high), y1: ys.at(value), y2: ys.at(value)});
        later.push({x: xs.at(xs.high), y: ys.at(value) - 6, 'text-anchor': 'end', said: `${name} ${prefixed(value, 'FLOP/s')}`});
      }
      for (const r of mine) {
        const said = r.roof === undefined ? '' : `${short(100 * r.roof)}% of the roof`;
        panel.point(shapeOf(run), xs.at(density(r)), ys.at(rate(r)), r, colourOf(r.backend), said);
      }
      for (const {said, ...at} of later) panel.add('text', {class: 'strong halo', ...at}, said);
    }};
  });
}

function cpuPanels(rows) {
  const usable = fits(rows).filter(r => r.cpu > 0);  // no logarithmic axis has a 0; the panel says how many there are
  return byMachine(usable, (run, mine) => ({title: data.runs[run].name, rows: mine, height: () => 300, draw: panel => {
    const threads = data.runs[run].threads || 1, [xs, ys] = panel.axes(
      {range: range(mine.map(r => r.wall[1])), label: 'wall time of a call', text: timeText},
      {range: range(mine.flatMap(r => [r.cpu, r.wall[1]])), text: timeText, label: 'CPU time'}, {left: 70});
    for (const n of new Set([1, threads])) {
      const from = Math.max(xs.low, ys.low / n), to = Math.min(xs.high, ys.high / n);
      if (from >= to) continue;
      panel.add('line', {class: 'unit', x1: xs.at(from), y1: ys.at(from * n), x2: xs.at(to), y2: ys.at(to * n)});
    }
    for (const r of mine) {
      const said = `${timeText(r.wall[1])} wall, ${timeText(r.cpu)} CPU`;
      panel.point(shapeOf(run), xs.at(r.wall[1]), ys.at(r.cpu), r, colourOf(r.backend), said);
    }
    const dashed = `dashed: 1 core busy${threads > 1 ? ` and ${threads} busy` : ''}`;
    panel.add('text', {class: 'halo', x: panel.width - 14, y: 240, 'text-anchor': 'end'}, dashed);
    const none = rows.filter(r => r.run === run && r.cpu === 0).length;
    if (none) panel.add('text', {class: 'halo', x: panel.width - 14, y: 224, 'text-anchor': 'end'}, `not drawn: ${none} whose CPU time was too short to count`);
  }}));
}

const FIRST = {cold: ['circle', 'cold: nothing compiled before'], reload: ['diamond', 'reload: forgotten, and on disk'],
               process: ['triangle', 'process: the first of a new process'], here: ['plus', 'here: as this run met it']};

function firstPanels(rows) {
  const usable = fits(rows).filter(r => Object.keys(r.first).length);
  return byMachine(usable, (run, mine) => {
    const groups = grouped(mine, r => `${r.op} ${r.dtype}`).map(([heading, list]) => [heading, backendsOf(list).map(backend => (panel, y, xs) => {
      panel.add('line', {class: 'grid', x1: 10, x2: panel.width - 12, y1: y, y2: y});
      for (const r of list.filter(r => r.backend === backend)) for (const [kind, s] of Object.entries(r.first))
        if (kind !== 'here' || !('cold' in r.first)) panel.point(FIRST[kind][0], xs.at(s), y, r, colourOf(backend), `${kind} ${timeText(s)}`, 4.2, false);
    })]);
    const axis = {range: range(mine.flatMap(r => Object.values(r.first)), 10), label: 'first call', text: timeText};
    return lanes(data.runs[run].name, mine, groups, axis, 12);
  });
}

const FIGURES = [
  {id: 'time', title: () => 'Time against size', panels: timePanels, machines: true, about:
    'Median of a call and, as a band and a bar, the 20th to 80th percentile of its rounds; both axes logarithmic. '
    + 'A line joins cases that differ in shape only.'},
  {id: 'speed', title: rows => `Speed-up over ${overOf(rows) || "each op's baseline"}`, panels: speedPanels, about:
    'A bar is the geometric mean of the cases shown that are not noisy, each a mark; where one op is shown, each case has its bar. '
    + 'Right of the dashed line is faster than the baseline.'},
  {id: 'roof', title: () => 'Roofline', panels: roofPanels, about:
    'What each row reached, under what the same run measured of its machine. Data that stays in a cache can pass the slope, '
    + 'and a matrix unit the FMA line.'},
  {id: 'cpu', title: () => 'Wall time against CPU time', panels: cpuPanels, about:
    'How many cores a call keeps busy: the median wall time, and the CPU time of all threads, the mean of all calls. On a GPU the host\'s part.'},
  {id: 'first', title: () => 'First call', panels: firstPanels, kinds: FIRST, about:
    'Compiling, loading from disk, or starting a process: one sample each.'},
];
