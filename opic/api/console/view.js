// What is shown, in the fragment of the address: so it can be shared, and the browser's Back leads to what was before.

const NAMES = ["page", "find", "policy", "window", "domain"];

export function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""]));
}

// Changes some parts of the view; an empty text takes one away. Nothing is asked by it.
export function write(parts) {
  const wanted = Object.entries({ ...read(), ...parts }).filter(([, text]) => text);
  const fragment = new URLSearchParams(wanted).toString();
  if (fragment !== location.hash.slice(1)) history.pushState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
}

// Calls `show` with the view, whenever Back, Forward or a hand changes the address.
export function whenChanged(show) {
  addEventListener("popstate", () => {
    if (location.hash === "" || location.hash.includes("=")) show(read()); // Else it leads to a place on the page.
  });
}
