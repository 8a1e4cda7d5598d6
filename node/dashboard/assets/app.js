// What the dashboard does beyond plain pages: one live stream per page. Every page is complete
// without this file. Changes of the tree make it fetch the same page again and take over what
// differs, so that pages are made in one place only; log entries are appended as they come.
'use strict';
(() => {
  const body = document.body;
  const query = body.dataset.stream;
  if (!query || !window.EventSource) return;
  const get = (id) => document.getElementById(id);
  const live = get('live'), lost = get('lost'), say = get('say');
  const log = get('log'), list = log && log.querySelector('ol'), fresh = get('new');
  const wantsTree = /(^|&)tree=on/.test(query);
  const MAX_ROWS = 2000;

  // Times. The server's clock counts: this one may be wrong.
  let skew = Date.parse(body.dataset.now) - Date.now();
  const now = () => Date.now() + skew;
  const span = (ms) => {
    const s = Math.max(0, Math.floor(ms / 1000));
    const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
    if (d) return h ? `${d} d ${h} h` : `${d} d`;
    if (h) return m ? `${h} h ${m} min` : `${h} h`;
    return m ? `${m} min` : `${s} s`;
  };
  const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  let shownAt = Date.now();
  const tick = () => {
    if (document.hidden) return;
    for (const t of document.querySelectorAll('time.ago')) put(t, span(now() - Date.parse(t.dateTime)));
    for (const t of document.querySelectorAll('time.in')) {
      const ms = Date.parse(t.dateTime) - now();
      put(t, ms < 1000 ? 'now' : 'in ' + span(ms));
    }
    if (!lost.hidden) {
      put(lost, `Connection lost. What you see is ${span(Date.now() - shownAt)} old; trying again.`);
    }
  };
  setInterval(tick, 1000);
  document.addEventListener('visibilitychange', tick);

  // Connection.
  const connected = (yes) => {
    live.hidden = !yes;
    if (yes) shownAt = Date.now();
    if (lost.hidden !== yes) { lost.hidden = yes; tick(); }
  };

  // Takes over what differs, element by element, so that focus and selection stay.
  const patch = (old, next) => {
    if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) {
      old.replaceWith(next);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
      return;
    }
    for (const a of [...old.attributes]) if (!next.hasAttribute(a.name)) old.removeAttribute(a.name);
    for (const a of next.attributes) {
      if (old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value);
    }
    const olds = [...old.childNodes], nexts = [...next.childNodes];
    nexts.forEach((n, i) => (i < olds.length ? patch(olds[i], n) : old.append(n)));
    for (const extra of olds.slice(nexts.length)) extra.remove();
  };

  // At most one request per second, and none while nobody looks.
  let asking = false, again = false;
  const refresh = async () => {
    if (asking || document.hidden) { again = true; return; }
    asking = true;
    again = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: 'text/html' } });
      if (!answer.ok) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
      skew = Date.parse(page.body.dataset.now) - Date.now();
      for (const part of document.querySelectorAll('[data-live]')) {
        const next = page.getElementById(part.id);
        if (next) patch(part, document.adoptNode(next));
      }
      if (document.title !== page.title) document.title = page.title;
      const icon = 'link[rel=icon]';
      patch(document.querySelector(icon), document.adoptNode(page.querySelector(icon)));
      shownAt = Date.now();
      tick();
    } catch (_) { again = true; }
    setTimeout(() => { asking = false; if (again) refresh(); }, 1000);
  };
  document.addEventListener('visibilitychange', () => { if (!document.hidden && again) refresh(); });

  // Changes of state are said aloud, politely, a few at a time.
  let known = null;
  const announce = (tree) => {
    const states = new Map(tree.nodes.map((n) => [n.dn, `${n.state}, ${n.health}`]));
    if (known) {
      const news = [];
      if (known.verdict !== tree.verdict) news.push(`The node is ${tree.verdict}`);
      for (const [dn, s] of states) if (known.states.get(dn) !== s) news.push(`${dn} is ${s}`);
      for (const dn of known.states.keys()) if (!states.has(dn)) news.push(`${dn} is gone`);
      if (news.length > 4) news.splice(4, news.length, `and ${news.length - 4} more changes`);
      if (news.length) say.textContent = news.join('. ') + '.';
    }
    known = { states, verdict: tree.verdict };
  };

  // Log rows, as the server makes them. Text only: nothing in a log line is ever markup.
  const hidden = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
  const visible = (text) => text.replace(/\t/g, ' ').replace(hidden, (c) => {
    const n = c.codePointAt(0);
    return n < 256 ? '\\x' + n.toString(16).padStart(2, '0') : `\\u{${n.toString(16)}}`;
  });
  const el = (tag, text, attributes) => {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    return e;
  };
  const cut = (text) => (text.length > 4096 ? text.slice(0, 4096) + '…' : text);
  const row = (e) => {
    const level = e.level || 'raw';
    const text = el('bdi', e.message.split('\n').map((l) => visible(cut(l))).join('\n'));
    for (const [k, v] of Object.entries(e.fields)) {
      text.append(' ', el('i', visible(k) + '='), visible(cut(v)));
    }
    const li = el('li', undefined, { class: level });
    const name = e.dn.replace(/^root\./, '').replace(/^kubernetes\./, '');
    li.append(el('time', e.time.slice(11, 23), { datetime: e.time }), el('b', level),
      el('a', name, { href: '/dn/' + e.dn, title: e.dn }), text);
    return li;
  };
  let unseen = 0;
  const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  const toEnd = () => { log.scrollTop = log.scrollHeight; unseen = 0; fresh.hidden = true; };
  let waiting = [];
  const flush = () => {
    const follow = atEnd();
    const count = waiting.length;
    if (count > MAX_ROWS) waiting = waiting.slice(-MAX_ROWS);
    list.append(...waiting);
    waiting = [];
    const empty = document.querySelector('.empty');
    if (empty && empty.previousElementSibling === fresh) empty.remove();
    if (follow) {
      while (list.childElementCount > MAX_ROWS) list.firstElementChild.remove();
      toEnd();
    } else {
      unseen += count;
      fresh.textContent = `${unseen} new ↓`;
      fresh.hidden = false;
    }
  };
  const append = (item) => {
    if (!list) return;
    if (!waiting.length) requestAnimationFrame(flush);
    waiting.push(item);
  };
  if (log) {
    toEnd();
    fresh.addEventListener('click', () => { toEnd(); log.focus(); });
    log.addEventListener('scroll', () => { if (atEnd()) { unseen = 0; fresh.hidden = true; } });
    const aloud = get('announce');
    if (aloud) {
      aloud.hidden = false;
      aloud.firstElementChild.addEventListener('change', (e) => {
        log.setAttribute('aria-live', e.target.checked ? 'polite' : 'off');
      });
    }
  }

  // The stream. The browser reconnects and resumes by itself; a refused stream is tried anew,
  // and where the session has ended, the page that asks for the token is shown.
  let source;
  const retry = async () => {
    const answer = await fetch(location.href, { method: 'HEAD' }).catch(() => null);
    if (answer && answer.status === 401) location.reload();
    else setTimeout(open, 5000);
  };
  const open = () => {
    source = new EventSource('/api/v1/stream?' + query);
    source.addEventListener('open', () => connected(true));
    source.addEventListener('error', () => {
      connected(false);
      if (source.readyState === EventSource.CLOSED) retry();
    });
    source.addEventListener('state', (m) => {
      const tree = JSON.parse(m.data);
      shownAt = Date.now();
      announce(tree);
      if (wantsTree) refresh();
    });
    source.addEventListener('entry', (m) => append(row(JSON.parse(m.data))));
    source.addEventListener('missed', (m) => {
      append(el('li', `${JSON.parse(m.data).missed} entries missed`, { class: 'missed' }));
    });
    source.addEventListener('reset', () => location.reload());
  };
  open();
  window.addEventListener('pagehide', () => source.close());
  window.addEventListener('pageshow', (e) => { if (e.persisted) location.reload(); });
})();
