// The fleet as a grid on one canvas: racks as columns while they fit, else nodes in order.
// 64 nodes show names and eight GPU marks each; 10,000 show coloured squares.

import { KINDS, kindOf, loudness, odds, sentence } from "./words.js";

const LABEL = 15;
const GAP = 10;
// From this size on a tile shows its name and its GPUs.
const NAMED_WIDTH = 92;
const NAMED_HEIGHT = 19;

export class Grid {
  constructor(canvas, tip, spoken, onSelect) {
    Object.assign(this, { canvas, tip, spoken, onSelect });
    this.nodes = [];
    this.places = [];
    this.selected = "";
    this.focus = -1;
    canvas.addEventListener("mousemove", (event) => this.hover(event));
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => {
      const at = this.at(event.offsetX, event.offsetY);
      if (at >= 0) { this.focus = at; onSelect(this.nodes[at].name); }
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => { this.focus = -1; this.paint(); });
    new ResizeObserver(() => requestAnimationFrame(() => this.lay())).observe(canvas.parentElement);
  }

  show(nodes, selected) {
    const same = nodes.length === this.nodes.length && nodes.every((n, i) => n.name === this.nodes[i].name);
    this.nodes = nodes;
    this.selected = selected;
    if (same) this.paint();
    else this.lay();
  }

  // Chooses rows of racks and columns in a rack so that tiles come out as large as they can.
  lay() {
    const width = this.canvas.parentElement.clientWidth;
    const count = this.nodes.length;
    if (!width || !count) return;
    const height = Math.min(Math.max(236, Math.round(Math.sqrt(count) * 5.2)), 460);
    let groups = new Map();
    this.nodes.forEach((node, i) => {
      if (!groups.has(node.group)) groups.set(node.group, []);
      groups.get(node.group).push(i);
    });
    if (groups.size > 48 || groups.size < 2) groups = new Map([["", this.nodes.map((_, i) => i)]]);
    const lists = [...groups.entries()];
    const most = Math.max(...lists.map(([, list]) => list.length));
    const label = lists.length > 1 ? LABEL : 0;
    const gap = lists.length > 1 ? GAP : 0;
    let best = null;
    for (let rows = 1; rows <= Math.min(6, lists.length); rows += 1) {
      const across = Math.ceil(lists.length / rows);
      for (let columns = 1; columns <= most; columns += 1) {
        const down = Math.ceil(most / columns);
        const w = Math.min(150, ((width - gap * (across - 1)) / across) / columns);
        const h = Math.min(34, (height - rows * label - (rows - 1) * 6) / rows / down);
        const named = w >= NAMED_WIDTH && h >= NAMED_HEIGHT;
        const score = Math.min(w / (named ? 4 : 1.15), h) + (named ? 100 : 0);
        if (!best || score > best.score) best = { score, rows, across, columns, down, w, h };
      }
    }
    const { across, columns, down, w, h, rows } = best;
    const wide = (width - gap * (across - 1)) / across;
    this.tile = { w: Math.min(w, wide / columns), h };
    this.labels = [];
    this.places = new Array(count);
    lists.forEach(([name, list], g) => {
      const x = (g % across) * (wide + gap);
      const y = Math.floor(g / across) * (label + down * h + 6);
      if (label) this.labels.push([name, x, y + 10]);
      list.forEach((i, place) => {
        this.places[i] = [x + (place % columns) * this.tile.w, y + label + Math.floor(place / columns) * h];
      });
    });
    this.size = [width, Math.ceil(rows * (label + down * h) + (rows - 1) * 6) + 1];
    this.paint();
  }

  colours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    const all = {};
    for (const name of Object.keys(KINDS)) all[name] = { fill: read(`tile-${name}`), mark: read(`mark-${name}`) };
    return { all, text: read("text"), quiet: read("quiet"), panel: read("panel"), accent: read("accent"),
      well: read("pip-well"), rest: read("pip-rest"), line: read("line"), mono: read("mono"), sans: read("sans") };
  }

  paint() {
    if (!this.size) return;
    const [width, height] = this.size;
    const scale = window.devicePixelRatio || 1;
    const canvas = this.canvas;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const look = this.colours();
    pen.textBaseline = "middle";
    pen.font = `11px ${look.sans}`;
    pen.fillStyle = look.quiet;
    for (const [name, x, y] of this.labels) pen.fillText(name, x, y - 4);
    const { w, h } = this.tile;
    const full = w >= NAMED_WIDTH && h >= NAMED_HEIGHT;
    this.nodes.forEach((node, i) => {
      const [x, y] = this.places[i];
      if (full) this.whole(pen, look, node, x, y, w - 3, h - 3);
      else this.small(pen, look, node, x, y, w, h);
    });
    const ring = (i, colour, thick) => {
      const [x, y] = this.places[i];
      pen.strokeStyle = colour;
      pen.lineWidth = thick;
      pen.strokeRect(x - 1, y - 1, Math.max(4, w - (full ? 1 : 0)), Math.max(4, h - (full ? 1 : 0)));
    };
    const at = this.nodes.findIndex((node) => node.name === this.selected);
    if (at >= 0) ring(at, look.text, 1.5);
    if (this.focus >= 0 && this.focus < this.nodes.length) ring(this.focus, look.accent, 2.5);
    const troubled = this.nodes.filter((node) => loudness(node) >= 1).length;
    canvas.setAttribute("aria-label", `${this.nodes.length} nodes, ${troubled} need a look. Arrow keys move, Enter opens.`);
  }

  whole(pen, look, node, x, y, w, h) {
    const kind = kindOf(node);
    const { fill, mark } = look.all[kind];
    pen.fillStyle = fill;
    pen.beginPath();
    pen.roundRect(x, y, w, h, 3);
    pen.fill();
    if (kind === "foreign") this.hatch(pen, mark, x, y, w, h);
    if (KINDS[kind][1]) {
      pen.strokeStyle = mark;
      pen.lineWidth = 1.2;
      pen.setLineDash(kind === "silent" ? [3, 3] : []);
      pen.beginPath();
      pen.roundRect(x + 0.6, y + 0.6, w - 1.2, h - 1.2, 3);
      pen.stroke();
      pen.setLineDash([]);
    }
    const middle = y + h / 2 + 0.5;
    pen.fillStyle = look.text;
    pen.font = `11px ${look.mono}`;
    const name = node.name.length > 8 ? node.name.slice(-5) : node.name;
    pen.fillText(name.replace(/^\D+/, ""), x + 7, middle);
    const used = 7 + pen.measureText("0000").width + 7;
    const count = Math.max(node.gpu_marks.length, 1);
    const room = w - used - 22;
    const pip = Math.max(2, Math.min(8, room / count - 2));
    for (let g = 0; g < node.gpu_marks.length; g += 1) {
      this.pip(pen, look, node, node.gpu_marks[g], x + used + g * (pip + 2), middle - pip / 2 - 0.5, pip, g);
    }
    if (KINDS[kind][1]) {
      pen.fillStyle = mark;
      pen.font = `bold 12px ${look.sans}`;
      pen.textAlign = "center";
      pen.fillText(KINDS[kind][1], x + w - 11, middle);
      pen.textAlign = "start";
    }
  }

  pip(pen, look, node, mark, x, y, size, g) {
    pen.lineWidth = 1;
    if (mark === "." ) {
      pen.fillStyle = g < node.gpus_allocated ? look.well : look.rest;
      pen.fillRect(x, y, size, size);
    } else if (mark === "s" || mark === "?") {
      pen.strokeStyle = look.quiet;
      pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    } else {
      const colour = look.all[mark === "r" ? "risk" : "fact"].mark;
      pen.fillStyle = colour;
      pen.fillRect(x - 0.5, y - 2, size + 1, size + 4);
      if (mark === "x") { pen.fillStyle = look.panel; pen.fillRect(x + 1, y + size / 2 - 1, size - 2, 2); }
    }
  }

  small(pen, look, node, x, y, w, h) {
    const kind = kindOf(node);
    const { fill, mark } = look.all[kind];
    const loud = Boolean(KINDS[kind][1]);
    const inset = Math.min(w, h) > 7 ? 1.5 : 0.6;
    pen.fillStyle = loud && kind !== "foreign" && kind !== "down" ? mark : fill;
    pen.fillRect(x, y, w - inset, h - inset);
    if (kind === "foreign" || kind === "down") this.hatch(pen, mark, x, y, w - inset, h - inset);
    if (loud && w >= 13 && h >= 13) {
      pen.fillStyle = kind === "foreign" || kind === "down" ? look.text : look.panel;
      pen.font = `bold 10px ${look.sans}`;
      pen.textAlign = "center";
      pen.fillText(KINDS[kind][1], x + (w - inset) / 2, y + (h - inset) / 2 + 0.5);
      pen.textAlign = "start";
    }
  }

  hatch(pen, colour, x, y, w, h) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.strokeStyle = colour;
    pen.globalAlpha = 0.5;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let d = -h; d < w; d += 5) { pen.moveTo(x + d, y + h); pen.lineTo(x + d + h, y); }
    pen.stroke();
    pen.restore();
  }

  at(x, y) {
    const { w, h } = this.tile || { w: 0, h: 0 };
    return this.places.findIndex(([left, top]) => x >= left && x < left + w && y >= top && y < top + h);
  }

  hover(event) {
    const at = this.at(event.offsetX, event.offsetY);
    this.tip.hidden = at < 0;
    if (at < 0) return;
    this.tip.textContent = sentence(this.nodes[at]);
    const left = Math.min(event.offsetX + 14, this.canvas.clientWidth - 330);
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${event.offsetY + 18}px`;
  }

  key(event) {
    if (!this.nodes.length) return;
    if (event.key === "Enter" || event.key === " ") {
      if (this.focus >= 0) this.onSelect(this.nodes[this.focus].name);
      event.preventDefault();
      return;
    }
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!way) return;
    event.preventDefault();
    const start = this.focus >= 0 ? this.focus : Math.max(0, this.nodes.findIndex((n) => n.name === this.selected));
    this.focus = this.focus >= 0 ? this.step(start, way) : start;
    const node = this.nodes[this.focus];
    this.spoken.textContent = `${sentence(node)}${node.risk === null ? "" : `, risk ${odds(node.risk)}`}`;
    this.paint();
  }

  // The nearest tile in a direction: tiles of other racks lie where they are drawn.
  step(from, [dx, dy]) {
    const [x, y] = this.places[from];
    let best = from;
    let least = Infinity;
    this.places.forEach(([left, top], i) => {
      const ahead = dx ? (left - x) * dx : (top - y) * dy;
      const aside = dx ? Math.abs(top - y) : Math.abs(left - x);
      if (ahead > 1 && aside * 4 + ahead < least && aside <= ahead * 2 + 1) {
        least = aside * 4 + ahead;
        best = i;
      }
    });
    return best;
  }
}
