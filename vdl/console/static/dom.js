// Elements of the page. Text from servers becomes text nodes and attribute values only: this file
// has the only calls that make nodes, and none of them reads markup.

const HANDLERS = Symbol("handlers");
const KEPT = Symbol("kept");
const DRAWN = Symbol("drawn"); // values of a field as the page last set them
const SVG = "http://www.w3.org/2000/svg";
const FIELDS = new Set(["input", "select", "textarea"]);
const OWN = new Set(["value", "checked"]); // properties that people change
const URL_ATTRIBUTES = new Set(["href", "src", "action", "formaction", "xlink:href"]);

// Return an element. A prop that begins with "on" is a listener, `key` names the element among its
// siblings, `value` and `checked` are properties, and null, undefined and false leave a prop out.
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

// Return an SVG element, as `h` does.
export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

// Return a stand-in for a node that keeps its own state: `patch` puts the node itself there.
export function keep(node) {
  const place = document.createElement("span");
  place[KEPT] = node;
  return place;
}

function filled(element, props, children) {
  const drawn = {};
  for (const [name, value] of Object.entries(props ?? {})) {
    const isOwn = FIELDS.has(element.localName) && OWN.has(name);
    if (isOwn) drawn[name] = value;
    if (isOwn || value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (name === "key") element.dataset.key = value;
    else if (URL_ATTRIBUTES.has(name) && !isSafeUrl(value)) continue;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  // A choice can be made once its options are there.
  Object.assign(element, drawn);
  element[DRAWN] = drawn;
  return element;
}

// Links lead to pages of the console, or by https to a document.
function isSafeUrl(value) {
  return /^(#|\.?\/(?!\/)|https:\/\/)/.test(value);
}

function listen(element, type, handler) {
  const handlers = (element[HANDLERS] ??= {});
  if (!(type in handlers)) element.addEventListener(type, dispatch);
  handlers[type] = handler;
}

function dispatch(event) {
  return this[HANDLERS][event.type]?.call(this, event);
}

// Make the children of `root` equal to `nodes` with the fewest changes, so that focus, selection
// and scroll positions survive a refresh.
export function render(root, ...nodes) {
  const wanted = document.createElement(root.localName);
  for (const node of nodes.flat(Infinity)) if (node) wanted.append(node);
  patchChildren(root, wanted);
}

function patch(from, to) {
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const { name } of [...from.attributes]) {
    // People open and close details; a refresh does not.
    if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  const handlers = to[HANDLERS] ?? {};
  for (const type of Object.keys(from[HANDLERS] ?? {})) {
    if (!(type in handlers)) from[HANDLERS][type] = null;
  }
  for (const [type, handler] of Object.entries(handlers)) listen(from, type, handler);
  patchChildren(from, to);
  // A text that was typed stays, unless the page now means another one than before.
  for (const [name, value] of Object.entries(to[DRAWN] ?? {})) {
    const isNew = from[DRAWN][name] !== value;
    if (isNew && from !== document.activeElement) from[name] = value;
  }
  from[DRAWN] = to[DRAWN];
}

function patchChildren(from, to) {
  const keyed = new Map();
  for (const child of from.childNodes) {
    if (child.dataset?.key) keyed.set(child.dataset.key, child);
  }
  let at = from.firstChild;
  for (const next of [...to.childNodes]) {
    const kept = next[KEPT];
    const key = next.dataset?.key;
    let match = at;
    if (kept) match = kept.parentNode === from ? kept : null;
    else if (key) match = keyed.get(key) ?? null;
    if (!match || !(kept || isSame(match, next))) {
      from.insertBefore(kept ?? adopted(next), at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else from.insertBefore(match, at);
    if (!kept) patch(match, next);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function isSame(one, other) {
  return one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
}

// Put kept nodes in their places below a node that is new in the page.
function adopted(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return node;
  for (const place of node.querySelectorAll("span")) {
    if (place[KEPT]) place.replaceWith(place[KEPT]);
  }
  return node;
}
