// Numbers, sizes and times in words. Offsets and counts are texts or BigInts where they may pass
// 2^53, and never become floating point numbers here.

const GROUPED = new Intl.NumberFormat("en");
const DASH = "–";
const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
const COUNT_UNITS = ["", "k", "M", "G", "T"];

const isNothing = (value) => value === null || value === undefined || value === "";

// Return a count with separators: 12,345.
export function count(value) {
  if (isNothing(value)) return DASH;
  if (typeof value === "string" && /^-?\d+$/.test(value)) return GROUPED.format(BigInt(value));
  return typeof value === "string" ? value : GROUPED.format(value);
}

// Return "1 partition", "2 partitions".
export function counted(value, what) {
  return `${count(value)} ${what}${String(value) === "1" ? "" : "s"}`;
}

// Return an offset as it is used in commands: without separators.
export function offset(value) {
  return isNothing(value) ? DASH : String(value);
}

// Return end - start of two offsets as a text; null if one is not known.
export function difference(end, start) {
  if (isNothing(end) || isNothing(start)) return null;
  return String(BigInt(end) - BigInt(start));
}

function scaled(value, units) {
  let size = Number(value);
  let unit = 0;
  while (Math.abs(size) >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  const digits = unit === 0 && Number.isInteger(size) ? 0 : Math.abs(size) < 9.95 ? 1 : 0;
  return [size.toFixed(digits), units[unit]];
}

// Return a size: 1.2 MB.
export function bytes(value) {
  return isNothing(value) ? DASH : scaled(value, BYTE_UNITS).join(" ");
}

// Return a rate without its unit: 1.2k.
export function short(value) {
  return isNothing(value) ? DASH : scaled(value, COUNT_UNITS).join("");
}

export const perSecond = (value) => (isNothing(value) ? DASH : `${short(value)}/s`);
export const bytesPerSecond = (value) => (isNothing(value) ? DASH : `${bytes(value)}/s`);

// Return a duration of seconds: 3.2 ms, 14 s, 2 min 5 s, 3 h 10 min, 4 d.
export function duration(seconds) {
  if (isNothing(seconds)) return DASH;
  const value = Number(seconds);
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 9.95 && !Number.isInteger(value) ? 1 : 0)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return pair(whole, 60, "min", 1, "s");
  if (whole < 86_400) return pair(whole, 3600, "h", 60, "min");
  return pair(whole, 86_400, "d", 3600, "h");
}

// Return a duration in one unit, for the axis of a plot: 2.5 h.
export function brief(seconds) {
  const [size, unit] = [[86_400, "d"], [3600, "h"], [60, "min"]].find(([least]) => seconds >= least) ?? [0, ""];
  if (!size) return duration(seconds);
  const value = seconds / size;
  return `${value.toFixed(value < 9.95 && !Number.isInteger(value) ? 1 : 0)} ${unit}`;
}

function pair(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

const two = (value) => String(value).padStart(2, "0");

// Return a point in time in this browser's time zone: 2026-11-30 09:31:05.120.
export function time(milliseconds) {
  if (isNothing(milliseconds) || Number(milliseconds) < 0) return DASH;
  const date = new Date(Number(milliseconds));
  if (Number.isNaN(date.getTime())) return String(milliseconds);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const rest = date.getMilliseconds();
  return `${day} ${clock(date)}${rest ? `.${String(rest).padStart(3, "0")}` : ""}`;
}

// Return the time of day of a date or of milliseconds: 09:31:05.
export function clock(value) {
  const date = value instanceof Date ? value : new Date(Number(value));
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// Return a point in time in UTC, for titles.
export function utc(milliseconds) {
  const date = new Date(Number(milliseconds));
  return Number.isNaN(date.getTime()) ? "" : date.toISOString();
}

// Return a text without characters that could hide or reorder what follows them.
export function visible(text) {
  return String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => {
      const code = character.codePointAt(0);
      if (code < 0x20) return String.fromCodePoint(0x2400 + code);
      return `\\u${code.toString(16).padStart(4, "0")}`;
    },
  );
}
