// The address of a page is the fragment of the URL: #/topics/orders/records?partition=3. It can be
// shared, and the server needs no routes for it.

// Return {path, params} of the present address: decoded parts, and a Map of texts.
export function present() {
  const [path, query] = splitOnce(location.hash.replace(/^#\/?/, ""), "?");
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    params: new Map(new URLSearchParams(query)),
  };
}

function splitOnce(text, separator) {
  const at = text.indexOf(separator);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// Return the address of a page. Params that are null, undefined or "" are left out.
export function to(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const tail = query.size ? `?${query}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${tail}`;
}

// Return the address of the present page with some params changed.
export function changed(params) {
  const { path, params: old } = present();
  return to(path, { ...Object.fromEntries(old), ...params });
}

// Go to an address. `replace`: without a step for the Back button.
export function go(address, { replace = false } = {}) {
  if (address === location.hash) return;
  if (!replace) {
    location.hash = address;
    return;
  }
  history.replaceState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
