// Colours before the first paint, so that a dark page does not begin with a white flash.
"use strict";
try {
  const theme = localStorage.getItem("vdl.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off in this browser: the page follows the system.
}
