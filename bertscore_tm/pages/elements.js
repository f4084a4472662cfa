// What all pages share: their data, elements, keyboard navigation and numbers.

// The data are JSON, compressed and in base 64.
export async function readData() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).json();
}

// An element with attributes and listeners, whose names begin with "on". Texts only ever become text nodes, so that no
// text of a page is read as markup.
function create(namespace, tag, attributes, children) {
  const element = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== undefined && value !== null && value !== false) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children);
  return element;
}
export const html = (tag, attributes = {}, ...children) => create("http://www.w3.org/1999/xhtml", tag, attributes, children);
export const svg = (tag, attributes = {}, ...children) => create("http://www.w3.org/2000/svg", tag, attributes, children);

// Let Tab reach one of several elements, and arrow keys the others. They may be in rows; null is a gap.
export function rove(elements, rowLength) {
  const present = elements.filter(Boolean);
  const letTabReach = (reached) => {
    for (const element of present) element.setAttribute("tabindex", element === reached ? "0" : "-1");
  };
  letTabReach(present[0]);
  // Up and down do nothing if the elements are in one row: the step is undefined.
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: rowLength, ArrowUp: -rowLength };
  for (const element of present) {
    element.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      let place = elements.indexOf(element) + step;
      while (elements[place] === null) place += step;
      if (!elements[place]) return;
      event.preventDefault();
      letTabReach(elements[place]);
      elements[place].focus();
    });
  }
  return present;
}

export function format(x, digits = 4) {
  // JSON has null for numbers that are not finite.
  if (x === null || Number.isNaN(x)) return "–";
  return x.toFixed(digits);
}
