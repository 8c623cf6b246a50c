// A page with data of the server: loading, shown, shown but old, failed.

import { h, render } from "./dom.js";
import { clock } from "./format.js";
import { Poll } from "./poll.js";
import { failure, loading } from "./ui.js";

// Show a page below `context.root` and return a function that ends it.
// `name`: pages with the same name share their elements, so that a changed search keeps the focus;
// `load(signal)` returns the data, `view(data)` its elements, `every` seconds or 0 for once.
// `view` gets `refresh()` and `redraw()` as second argument.
export function live(context, { name, load, view, every = 0 }) {
  const { root } = context;
  let data = null;
  let error = null;
  let answeredAt = null;
  let isEnded = false;

  const draw = () => {
    if (isEnded) return;
    root.removeAttribute("aria-busy");
    if (data === null) render(root, error ? failure(error, refresh) : loading());
    else render(root, error ? aged(error, answeredAt, refresh) : null, view(data, hands));
  };
  const poll = new Poll(async (signal) => {
    try {
      data = await load(signal);
      error = null;
      answeredAt = Date.now();
    } catch (caught) {
      if (signal.aborted) return false;
      error = caught;
      if (isFinal(caught)) data = null;
    }
    draw();
    return error === null;
  }, every);
  const refresh = () => poll.now();
  const hands = { refresh, redraw: draw };

  if (root.dataset.page === name) root.setAttribute("aria-busy", "true");
  else render(root, loading());
  root.dataset.page = name;
  return () => {
    isEnded = true;
    poll.stop();
  };
}

// Old data is misleading after these.
const isFinal = (error) => ["not_found", "forbidden", "bad_request"].includes(error.kind);

function aged(error, answeredAt, refresh) {
  return h(
    "div",
    { class: "box warn aged", role: "status", key: "aged" },
    h("p", {}, `${error.message} Shown is the state of ${clock(answeredAt)}.`),
    h("button", { type: "button", onclick: refresh }, "Try again"),
  );
}
