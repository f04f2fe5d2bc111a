// How figures are written for people. Whatever is missing is a dash.

export const NONE = "\u2013";

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const WORDS = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };

// Non-finite numbers come as words, for JSON has none of them.
export function fromWire(value) {
  return typeof value === "string" ? (WORDS[value] ?? null) : value;
}

export function count(number) {
  return number === null || number === undefined ? NONE : GROUPED.format(number);
}

export function loss(value) {
  const number = fromWire(value);
  if (number === null || number === undefined) return NONE;
  if (!Number.isFinite(number)) return String(number);
  return Math.abs(number) >= 1e-3 || number === 0 ? number.toPrecision(4).replace(/e.*/, "") : number.toExponential(2);
}

export function percent(share, digits = 1) {
  const number = fromWire(share);
  if (number === null || number === undefined) return NONE;
  return Number.isFinite(number) ? `${(number * 100).toFixed(digits)} %` : String(number);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} m`;
}

export function ago(seconds) {
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

export function moment(iso) {
  return iso ? new Date(iso).toLocaleString("sv-SE") : NONE;
}

export function bytes(number) {
  if (number < 1000) return `${number} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let power = 0;
  for (number /= 1000; number >= 999.5 && power < units.length - 1; number /= 1000) power += 1;
  return `${number.toPrecision(3)} ${units[power]}`;
}

export function measure(name, value) {
  return /acc|share|recall|precision|f1/i.test(name) ? percent(value, 2) : loss(value);
}
