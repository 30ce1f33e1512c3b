// The colours that were chosen last, set before anything is drawn.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("octavo-theme");
  } catch {
    // No storage in here: as the system has them.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
