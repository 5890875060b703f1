// Numbers as a person writes them: the same digits as the command line, from the same SI numbers.

const LADDERS = {
  s: [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]],
};
const PREFIXES = [["E", 1e18], ["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]];
const SCALED = ["B", "B/s", "FLOP", "FLOP/s", "W", "J"];
for (const unit of SCALED) LADDERS[unit] = PREFIXES.map(([prefix, scale]) => [prefix + unit, scale]);
const NEARLY = 1 - 5e-5; // of a rung: four digits round up to it

// The unit in which `value` reads well, and its size.
function rung(value, unit) {
  const ladder = LADDERS[unit] || [[unit, 1]];
  return ladder.find(([, scale]) => Math.abs(value) >= scale * NEARLY) || ladder[ladder.length - 1];
}

// So many significant digits, without zeros at the end; as Python's "g".
function digits(value, count) {
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(count)))));
  if (size < -5 || size >= Math.max(count, 7)) {
    const [number, power] = value.toExponential(count - 1).split("e");
    return `${Number(number)}e${power}`;
  }
  return String(Number(value.toPrecision(count)));
}

function grouped(value, decimals) {
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

// A number with its unit; "none" where there is none.
function format(value, unit) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (unit === "share") return `${(100 * value).toFixed(1)} %`;
  if (unit === "%") return `${digits(value, 3)} %`;
  if (unit === "count") return grouped(value, 0);
  if (LADDERS[unit]) {
    if (value === 0) return `0 ${unit}`;
    const [name, scale] = rung(value, unit);
    return `${digits(value / scale, 4)} ${name}`;
  }
  const number = Math.abs(value) >= 1000 ? grouped(value, Math.abs(value) < 1e4 ? 1 : 0) : digits(value, 4);
  return unit ? `${number} ${unit}` : number;
}

// The value at a dotted key of nested objects.
function at(data, key) {
  return key.split(".").reduce((value, name) => (value === null || value === undefined ? undefined : value[name]), data);
}

// A node with attributes and children; text is text, never markup.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick" || name === "oninput" || name === "onchange") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
