// What all pages share: their data, elements, keyboard navigation and numbers.

// The data are JSON, compressed and in base 64.
export async function readData() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).json();
}

// Texts only ever become text nodes.
function create(namespace, tag, attributes, children) {
  const element = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
export const html = (tag, attributes = {}, ...children) => create("http://www.w3.org/1999/xhtml", tag, attributes, children);
export const svg = (tag, attributes = {}, ...children) => create("http://www.w3.org/2000/svg", tag, attributes, children);

// Let Tab reach one of several elements, and arrow keys the others. They may be in rows; null is a gap.
export function rove(elements, rowLength) {
  const present = elements.filter(Boolean);
  for (const element of present) {
    element.setAttribute("tabindex", element === present[0] ? "0" : "-1");
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: rowLength, ArrowUp: -rowLength }[event.key];
      let place = elements.indexOf(element) + step;
      while (elements[place] === null) place += step;
      if (!elements[place]) return;
      event.preventDefault();
      for (const other of present) other.setAttribute("tabindex", other === elements[place] ? "0" : "-1");
      elements[place].focus();
    });
  }
  return present;
}

export const format = (x, digits = 4) => (x === null || Number.isNaN(x) ? "–" : x.toFixed(digits));
