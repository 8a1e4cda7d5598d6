(() => {
  const found = [];
  const light = (c) => {
    const f = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]);
  };
  const pixel = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (css) => {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = css;
    pixel.fillRect(0, 0, 1, 1);
    const d = pixel.getImageData(0, 0, 1, 1).data;
    return [d[0], d[1], d[2], d[3] / 255];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const behind = (e) => {
    const layers = [];
    for (let n = e; n; n = n.parentElement) layers.unshift(rgba(getComputedStyle(n).backgroundColor));
    return layers.reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  for (const e of document.querySelectorAll('body *')) {
    const box = e.getBoundingClientRect();
    const speaks = [...e.childNodes].some((n) => n.nodeType === 3 && n.nodeValue.trim());
    if (!speaks || box.width < 2 || box.height < 2) continue;
    const back = behind(e);
    const [a, b] = [light(over(rgba(getComputedStyle(e).color), back)), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)}:1 at ${e.tagName} "${e.textContent.slice(0, 40)}"`);
  }
  const levels = [...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1]);
  if (levels.some((l, i) => i && l > levels[i - 1] + 1)) found.push(`headings ${levels}`);
  for (const e of document.querySelectorAll('input,select,button:not([hidden])')) {
    const named = (e.labels && e.labels.length) || e.textContent.trim();
    if (!named) found.push(`no name: ${e.outerHTML.slice(0, 80)}`);
  }
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) found.push(`${wide} px too wide`);
  return found;
})()
