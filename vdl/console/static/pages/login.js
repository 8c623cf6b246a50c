// Login with a user of the cluster. The password goes to the server once and is kept nowhere.

import { post } from "../api.js";
import { h, render } from "../dom.js";
import { button, field, head } from "../ui.js";

export function showLogin({ root, session, onSession }) {
  const state = { isBusy: false, error: null };
  const { mechanisms } = session;

  async function submit(event) {
    event.preventDefault();
    if (state.isBusy) return;
    const { user, password, mechanism } = event.target.elements;
    state.isBusy = true;
    state.error = null;
    draw();
    try {
      const answer = await post("login", {
        user: user.value,
        password: password.value,
        ...(mechanism ? { mechanism: mechanism.value } : {}),
      });
      onSession(answer);
    } catch (error) {
      state.error = error;
      state.isBusy = false;
      draw();
      password.value = "";
      password.focus();
    }
  }

  function draw() {
    render(
      root,
      h(
        "form",
        { class: "login", onsubmit: submit },
        head("Log in", { note: `Server ${session.server} of VDL. The user is one of its clients' users.` }),
        field("User", h("input", { name: "user", autocomplete: "username", required: true, spellcheck: "false", autocapitalize: "none" })),
        field("Password", h("input", { name: "password", type: "password", autocomplete: "current-password", required: true })),
        mechanisms.length > 1
          ? field("Mechanism", h("select", { name: "mechanism" }, mechanisms.map((one) => h("option", { value: one }, one))))
          : null,
        state.error ? h("div", { class: "box bad", role: "alert" }, h("p", {}, words(state.error))) : null,
        button(state.isBusy ? "Logging in …" : "Log in", null, { type: "submit", class: "main", disabled: state.isBusy }),
      ),
    );
  }

  delete root.dataset.page;
  draw();
  root.querySelector("[name=user]").focus();
  return () => {};
}

function words(error) {
  if (error.kind === "login_failed") return "The servers refused this user or this password.";
  if (error.kind === "too_many" && error.retryAfter) return `There were too many attempts. Try again in ${error.retryAfter} seconds.`;
  return error.message;
}
