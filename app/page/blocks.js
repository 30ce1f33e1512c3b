// The map of the KV blocks: a square a block, or for a few blocks, drawn on a canvas.
import { colour, onColours, ownerColour } from "./colours.js";
import { byId, count, element, plural, say } from "./format.js";

// As app/live/cells.py numbers them.
const [FREE, CACHED, OTHERS, FIRST] = [0, 1, 2, 4];
const SIZES = { least: 5, most: 17 };
const HEIGHT = 240; // pixels that the map should not be higher than
const GROUP = 8;

/** Runs as the server sends them, one entry a square. */
function unrolled(runs) {
  const marks = [];
  for (let at = 0; at < runs.length; at += 2) {
    for (let left = runs[at + 1]; left > 0; left--) marks.push(runs[at]);
  }
  return marks;
}

/** What the map shows, for who does not see it. */
function inWords({ blocks, cached_tokens, looked_up_tokens }) {
  const held = `${plural(blocks.total, "block")} of ${blocks.block_size} tokens: ${count(blocks.owned)} owned, `;
  const rest = `${count(blocks.shared)} of them shared; ${count(blocks.cached)} cached, ${count(blocks.free)} free.`;
  const words = [held + rest];
  if (looked_up_tokens) {
    words.push(`${Math.round((100 * cached_tokens) / looked_up_tokens)}% of all prompt tokens were found in the cache.`);
  }
  if (blocks.host.total) {
    words.push(`${count(blocks.host.total - blocks.host.free)} of ${count(blocks.host.total)} on the host.`);
  }
  if (blocks.blocks_per_cell > 1) {
    words.push(`Each square stands for ${blocks.blocks_per_cell} blocks, and shows who owns one of them.`);
  }
  return words.join(" ");
}

export class BlockMap {
  constructor() {
    this.canvas = byId("blocks");
    this.marks = [];
    this.blocks = null;
    this.names = new Map();
    this.lit = null;
    this.tip = element("p", { className: "tip numbers", hidden: true });
    this.tip.setAttribute("aria-hidden", "true");
    this.canvas.after(this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    onColours(() => this.draw());
  }

  /** names: what each request is called, by the engine's number. */
  show(live, names) {
    this.blocks = live.blocks;
    this.names = names;
    this.marks = unrolled(live.blocks.cells);
    this.draw();
    say(byId("blocks-says"), inWords(live));
    const label = `Map of the KV blocks, of ${plural(live.running, "running request")} and ${count(live.waiting)} waiting`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
  }

  /** Dim everything but the blocks of one request; null: nothing. */
  light(id) {
    if (this.lit === id) return;
    this.lit = id;
    this.draw();
  }

  owner(mark) {
    return mark < FIRST ? null : this.blocks.owners[(mark - FIRST) >> 1];
  }

  measure() {
    const box = this.canvas.parentElement;
    const style = getComputedStyle(box);
    const width = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const ideal = Math.floor(Math.sqrt((width * HEIGHT) / this.marks.length));
    const wanted = Math.max(SIZES.least, Math.min(SIZES.most, ideal));
    const columns = Math.max(GROUP, Math.floor(width / wanted / GROUP) * GROUP);
    // Lines are full: a square is as much larger as that takes, and starts at a whole pixel.
    return { width, pitch: width / columns, columns, rows: Math.ceil(this.marks.length / columns) };
  }

  draw() {
    if (!this.marks.length || !this.canvas.offsetParent) return;
    const { width, pitch, columns, rows } = (this.grid = this.measure());
    const scale = devicePixelRatio || 1;
    const height = Math.ceil(rows * pitch);
    this.canvas.style.height = `${height}px`;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const size = Math.floor(pitch) - (pitch > 9 ? 2 : 1);
    this.marks.forEach((mark, at) => {
      const [x, y] = [(at % columns) * pitch, Math.floor(at / columns) * pitch];
      this.square(pen, mark, Math.round(x), Math.round(y), size);
    });
  }

  square(pen, mark, x, y, size) {
    const id = this.owner(mark);
    pen.globalAlpha = this.lit === null || id === this.lit ? 1 : 0.22;
    pen.fillStyle = this.fill(mark, id);
    pen.beginPath();
    pen.roundRect(x, y, size, size, size > 8 ? 2 : 1);
    pen.fill();
    if (mark === CACHED && size > 5) this.stroke(pen, x, y, size);
    const shared = mark >= OTHERS && (mark - OTHERS) % 2 === 1;
    if (shared) {
      pen.fillStyle = colour("--card");
      const dot = Math.max(2, Math.round(size * 0.36));
      pen.fillRect(x + (size - dot) / 2, y + (size - dot) / 2, dot, dot);
    }
  }

  fill(mark, id) {
    if (id !== null) return ownerColour(id);
    return colour(mark === FREE ? "--block-free" : mark === CACHED ? "--block-cached" : "--block-other");
  }

  stroke(pen, x, y, size) {
    pen.strokeStyle = colour("--block-hatch");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x + 1.5, y + size - 1.5);
    pen.lineTo(x + size - 1.5, y + 1.5);
    pen.stroke();
  }

  // ---------------------------------------------------------------- pointing

  point(event) {
    if (!this.grid) return;
    const { pitch, columns } = this.grid;
    const column = Math.floor(event.offsetX / pitch);
    const at = Math.floor(event.offsetY / pitch) * columns + column;
    if (column >= columns || at >= this.marks.length) return this.leave();
    const mark = this.marks[at];
    this.light(this.owner(mark));
    const first = at * this.blocks.blocks_per_cell;
    say(this.tip, `Block ${count(first)}: ${this.words(mark)}`);
    this.tip.hidden = false;
    const room = this.canvas.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${this.canvas.offsetLeft + Math.max(0, Math.min(room, event.offsetX + 12))}px`;
    this.tip.style.top = `${this.canvas.offsetTop + event.offsetY + 16}px`;
  }

  words(mark) {
    if (mark === FREE) return "free";
    if (mark === CACHED) return "cached, owned by nobody";
    const id = this.owner(mark);
    const who = id === null ? "a request that is not listed" : (this.names.get(id) ?? `request ${id}`);
    return (mark - OTHERS) % 2 ? `shared, among others by ${who}` : who;
  }

  leave() {
    this.tip.hidden = true;
    this.light(null);
  }
}
