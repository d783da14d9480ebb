'use strict';
// Folding works without this script; it adds folding of all, and the zoom.
const chart = document.querySelector('.chart'), grid = chart.querySelector('.grid');
const total = Number(chart.dataset.total), ready = grid.querySelector('.ready');
let from = 0, span = 1;
const time = (ns, unit) => {
  const [size, word] = unit >= 1e8 && total >= 1e9 ? [1e9, 's'] : unit >= 1e6 ? [1e6, 'ms'] : [1e3, 'µs'];
  return ns === 0 ? '0' : Number((ns / size).toFixed(1)) + ' ' + word;
};
const draw = () => {
  chart.style.setProperty('--z', from);
  chart.style.setProperty('--n', span);
  chart.classList.toggle('zoomed', span < 1);
  const wide = total * span, most = innerWidth < 700 ? 3 : 7;
  let step = 1e3;
  for (let n = 0; wide / step > most; n++) step *= n % 3 === 1 ? 2.5 : 2;
  const ticks = [];
  for (let at = Math.ceil(from * total / step) * step; at <= (from + span) * total; at += step) {
    const tick = document.createElement('span');
    tick.style.setProperty('--f', at / total);
    tick.textContent = time(at, step);
    // A label that would leave the page stands on the other side of its line.
    if ((at / total - from) / span > 0.94) tick.className = 'last';
    ticks.push(tick);
  }
  grid.replaceChildren(...ticks, ...(ready ? [ready] : []));
};
const show = (begin, width) => {
  span = Math.min(1, Math.max(width, 2e3 / total));
  from = Math.min(Math.max(begin, 0), 1 - span);
  draw();
};
const zoom = (factor) => show(from + span * (1 - factor) / 2, span * factor);
const folds = (open) => document.querySelectorAll('details').forEach((fold) => { fold.open = open; });
const acts = {
  in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, 1),
  left: () => show(from - span / 4, span), right: () => show(from + span / 4, span),
  fold: () => folds(false), unfold: () => folds(true),
};
const tools = document.querySelector('.tools');
tools.hidden = false;
tools.addEventListener('click', (event) => acts[event.target.dataset.act]?.());
const keys = { '+': 'in', '=': 'in', '-': 'out', 0: 'all', ArrowLeft: 'left', ArrowRight: 'right' };
document.addEventListener('keydown', (event) => {
  if (!event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key]) acts[keys[event.key]]();
});
// A stage from its begin to its end.
chart.addEventListener('dblclick', (event) => {
  const bars = [...(event.target.closest('.row')?.querySelectorAll('.bar') ?? [])];
  if (bars.length === 0) return;
  const [begins, ends] = [bars.map((bar) => Number(bar.style.getPropertyValue('--f'))), bars.map((bar) =>
    Number(bar.style.getPropertyValue('--f')) + Number(bar.style.getPropertyValue('--w')))];
  const begin = Math.min(...begins), width = Math.max(...ends) - begin;
  show(begin - width / 10, width * 1.2);
});
addEventListener('resize', draw);
draw();
