// The console: finds the session, then shows the page that the address names.

import { get, whenLoginRequired } from "./api.js";
import { h, render } from "./dom.js";
import { visible } from "./format.js";
import { showExplanation } from "./pages/explain.js";
import { showGroup, showGroups } from "./pages/groups.js";
import { showLogin } from "./pages/login.js";
import { showOverview } from "./pages/overview.js";
import { showProblems } from "./pages/problems.js";
import { showProduce } from "./pages/produce.js";
import { showRecords } from "./pages/records.js";
import { showSecurity } from "./pages/security.js";
import { showServer, showServers } from "./pages/servers.js";
import { showTopic, showTopics } from "./pages/topics.js";
import { present, to } from "./route.js";
import { Shell, say } from "./shell.js";
import { failure, head } from "./ui.js";

const root = document.getElementById("page");
let end = () => {};
let shownPath = null;

// Return {title, show} of an address.
function found([section = "", name, part]) {
  if (section === "") return { title: "Overview", show: showOverview };
  if (section === "servers" && name) return { title: `Server ${name}`, show: showServer };
  if (section === "servers") return { title: "Servers", show: showServers };
  if (section === "topics" && part === "records") return { title: name, show: showRecords };
  if (section === "topics" && part === "produce") return { title: name, show: showProduce };
  if (section === "topics" && name) return { title: name, show: showTopic };
  if (section === "topics") return { title: "Topics", show: showTopics };
  if (section === "groups" && name) return { title: name, show: showGroup };
  if (section === "groups") return { title: "Consumer groups", show: showGroups };
  if (section === "security") return { title: "Security", show: showSecurity };
  if (section === "explain") return { title: "Why", show: showExplanation };
  if (section === "problems") return { title: "What is wrong", show: showProblems };
  return { title: "No such page", show: showNothing };
}

function showNothing({ root: place }) {
  delete place.dataset.page;
  render(place, head("No such page"), h("p", {}, h("a", { href: to([]) }, "Overview")));
  return () => {};
}

const shell = new Shell(useSession);

function showPage() {
  end();
  const { path, params } = present();
  if (!shell.isIn) {
    shell.draw("login");
    document.title = "Log in · VDL";
    end = showLogin({ root, session: shell.session, onSession: useSession });
    return;
  }
  const { title, show } = found(path);
  document.title = `${visible(title)} · VDL`;
  shell.draw(path[0] ?? "");
  end = show({ root, path, params, session: shell.session, health: shell.health });
  const isOther = shownPath !== null && shownPath !== path.join("/");
  shownPath = path.join("/");
  if (!isOther) return;
  scrollTo(0, 0);
  root.focus({ preventScroll: true });
  say(visible(title));
}

function useSession(session) {
  shell.session = session;
  if (shell.isIn) shell.health.start();
  else shell.health.stop();
  showPage();
}

async function begin() {
  try {
    useSession(await get("session"));
  } catch (error) {
    end();
    delete root.dataset.page;
    render(root, failure(error, begin));
  }
}

// A set without logins makes a new session when the old one has ended.
let isRenewing = false;
whenLoginRequired(async () => {
  if (isRenewing) return;
  isRenewing = true;
  await begin();
  isRenewing = false;
});

addEventListener("hashchange", () => {
  if (shell.session) showPage();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its fragment is no address of a page
  root.focus();
});
addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const field = root.querySelector("[data-search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
});
shell.draw("");
begin();
