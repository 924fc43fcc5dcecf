// Formulas are written in TeX and drawn by KaTeX. Without a network their source stays readable.
document.addEventListener("DOMContentLoaded", () => {
  if (window.renderMathInElement === undefined) return;
  const sheet = document.createElement("link");
  sheet.rel = "stylesheet";
  sheet.href = "https://cdn.jsdelivr.net/npm/katex@0.16.22/dist/katex.min.css";
  document.head.append(sheet);
  renderMathInElement(document.body, {
    delimiters: [
      { left: "\\[", right: "\\]", display: true },
      { left: "\\(", right: "\\)", display: false },
    ],
  });
});
