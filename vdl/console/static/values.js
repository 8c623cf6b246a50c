// Keys, values and headers of records: JSON with folding, text, hex.

import { h } from "./dom.js";
import { bytes, count, visible } from "./format.js";

const NODES_AT_ONCE = 200; // children of a JSON value that are shown before "more"
const DEPTH_OPEN = 2;
const DEPTH_MAX = 100;
const PREVIEW_CHARACTERS = 160;

// Return a value on one line, cut.
export function preview(value) {
  if (value === null) return h("em", { class: "null" }, "null");
  if (value.text === "") return h("em", { class: "null" }, "empty");
  const cut = value.text.slice(0, PREVIEW_CHARACTERS);
  const isCut = value.is_cut || cut.length < value.text.length;
  return h("code", { class: "preview", dir: "ltr" }, visible(cut), isCut ? "…" : null);
}

// Return a whole value: a tree for JSON, lines for text, a dump for hex. With the schema that it
// names, if the server has a registry.
export function whole(value) {
  if (value === null) return h("em", { class: "null" }, "null");
  if (value.schema === undefined) return content(value);
  const words = value.problem ? `Not decoded by schema ${value.schema}: ${visible(value.problem)}.` : `Decoded by schema ${value.schema}.`;
  return [h("p", { class: "note" }, words), content(value)];
}

function content(value) {
  if (value.text === "" && !value.is_cut) return h("em", { class: "null" }, "empty");
  const cut = value.is_cut
    ? h("p", { class: "note" }, value.bytes === null ? "Only the beginning is shown." : `Only the beginning of ${bytes(value.bytes)} is shown.`)
    : null;
  return [shape(value), cut];
}

function shape(value) {
  if (value.form === "hex") return h("pre", { class: "dump", tabindex: "0" }, dump(value.text));
  if (value.form === "json") {
    const tree = value.is_cut ? null : parsed(value.text);
    if (tree) return h("div", { class: "json" }, drawn(tree, null, 0));
  }
  return h("pre", { class: "text", dir: "ltr", tabindex: "0" }, lines(value.text));
}

// Line breaks and tabs stay, other characters that cannot be seen are made visible.
const lines = (text) => text.split(/(\r?\n|\t)/).map((part, at) => (at % 2 ? part : visible(part))).join("");

// Return lines of 16 bytes: position, bytes, characters.
export function dump(pairs) {
  const digits = pairs.replace(/[^0-9a-f]/gi, "");
  const rows = [];
  for (let at = 0; at < digits.length; at += 32) {
    const codes = digits.slice(at, at + 32).match(/../g) ?? [];
    const letters = codes.map((code) => {
      const number = parseInt(code, 16);
      return number >= 0x20 && number < 0x7f ? String.fromCharCode(number) : ".";
    });
    const position = (at / 2).toString(16).padStart(6, "0");
    rows.push(`${position}  ${codes.join(" ").padEnd(digits.length > 32 ? 47 : 0)}  ${letters.join("")}`);
  }
  return rows.join("\n");
}

// Return a tree of a JSON text, or null. Numbers keep their digits, and names their order and
// repetition; JSON.parse would round the first and lose the second.
export function parsed(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = text.matchAll(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[[\]{}]/g);
  const root = { children: [] };
  const open = [root];
  let label = null;
  for (const [token] of tokens) {
    const parent = open.at(-1);
    if (token === "]" || token === "}") {
      open.pop();
      continue;
    }
    if (parent.kind === "{" && label === null) {
      label = JSON.parse(token);
      continue;
    }
    const node = token === "[" || token === "{" ? { kind: token, children: [] } : leaf(token);
    node.label = label;
    label = null;
    parent.children.push(node);
    if (node.children) {
      if (open.length > DEPTH_MAX) return null;
      open.push(node);
    }
  }
  return root.children[0];
}

function leaf(token) {
  if (token[0] === '"') return { kind: "string", text: JSON.parse(token) };
  return { kind: /^[tfn]/.test(token) ? "word" : "number", text: token };
}

function drawn(node, label, depth) {
  const prefix = label === null ? null : [h("span", { class: "label" }, `"${visible(label)}"`), ": "];
  if (!node.children) return h("div", { class: "leaf" }, prefix, scalar(node));
  const isList = node.kind === "[";
  const brackets = isList ? "[]" : "{}";
  if (!node.children.length) return h("div", { class: "leaf" }, prefix, brackets);
  const what = `${count(node.children.length)} ${isList ? "item" : "field"}${node.children.length === 1 ? "" : "s"}`;
  const inner = h("div", { class: "inner" });
  const fill = () => {
    if (!inner.firstChild) addChildren(inner, node, 0, depth);
  };
  const isOpen = depth < DEPTH_OPEN && node.children.length <= NODES_AT_ONCE;
  if (isOpen) fill();
  return h(
    "details",
    { open: isOpen, ontoggle: fill },
    h("summary", {}, prefix, `${brackets[0]} `, h("span", { class: "note" }, what), ` ${brackets[1]}`),
    inner,
  );
}

// Add some children, and a button for the others: a record may have a million of them.
function addChildren(inner, node, from, depth) {
  const end = Math.min(from + NODES_AT_ONCE, node.children.length);
  for (const child of node.children.slice(from, end)) inner.append(drawn(child, child.label, depth + 1));
  const left = node.children.length - end;
  if (!left) return;
  const more = h("button", {
    type: "button",
    class: "more",
    onclick() {
      more.remove();
      addChildren(inner, node, end, depth);
    },
  }, `${count(left)} more`);
  inner.append(more);
}

function scalar(node) {
  if (node.kind === "string") return h("span", { class: "string" }, `"${visible(node.text)}"`);
  return h("span", { class: node.kind }, node.text);
}
