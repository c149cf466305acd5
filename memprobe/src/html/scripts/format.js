// Numbers, texts and elements.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

// Formats as the reports do: 4.12 GiB; below one KiB whole bytes.
function human(bytes) {
  const sign = bytes < 0 ? '-' : '';
  let value = Math.abs(bytes);
  if (value < 1024) return `${sign}${Math.round(value)} B`;
  let unit = 0;
  while (value >= 1023.995 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit++;
  }
  return `${sign}${value.toFixed(2)} ${UNITS[unit]}`;
}

const difference = (bytes) => (bytes > 0 ? `+${human(bytes)}` : human(bytes));
const count = (number) => number.toLocaleString('en-US');

const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? '' : 's'}`;

function percent(part, whole) {
  return whole > 0 ? `${((part / whole) * 100).toFixed(1)}%` : '-';
}

function span(microseconds) {
  const sign = microseconds < 0 ? '-' : '';
  const seconds = Math.abs(microseconds) / 1e6;
  if (seconds < 1e-3) return `${sign}${(seconds * 1e6).toFixed(0)} us`;
  if (seconds < 1) return `${sign}${(seconds * 1e3).toFixed(3)} ms`;
  if (seconds < 60) return `${sign}${seconds.toFixed(3)} s`;
  const whole = Math.floor(seconds);
  const two = (number) => String(number).padStart(2, '0');
  return `${sign}${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

// An element with text or children. Texts are never markup.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'class') made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);

// Colours of the theme that is on.
function themeColours(categories) {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const bandKeys = [...categories.map((category) => category.key), 'before_attach', 'unaccounted'];
  return {
    bands: bandKeys.map(of), back: of('back'), panel: of('panel'), text: of('text'), faint: of('faint'),
    rule: of('rule'), a: of('cursor-a'), b: of('cursor-b'), select: of('select'), cached: of('cached'),
  };
}

// Fits a canvas to its size on the screen; returns its context in CSS pixels.
function fitted(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Cuts a text to a width on a canvas.
function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}…` : '';
}
