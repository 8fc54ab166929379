// The page of mqnotify serve. It asks the same addresses as any other client.
"use strict";

const byId = (id) => document.getElementById(id);
const most = 500; // messages in the list
const state = { token: sessionStorage.getItem("token") || "", topics: [], topic: "", paused: false, waiting: [], cursor: "", stream: null };

function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = "Bearer " + state.token;
  return fetch(path, { ...options, headers, cache: "no-store" });
}

function element(name, text, attributes = {}) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
}

function row(...cells) {
  const tr = element("tr");
  for (const [text, name] of cells) tr.append(element("td", text, name ? { class: name } : {}));
  return tr;
}

function sign(id, kind, text) {
  const e = byId(id);
  if (e.textContent !== text) e.textContent = text;
  e.className = kind;
}

const since = (s) => (s < 1 ? "now" : s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h");
const path = (...parts) => "/topics/" + [state.topic, ...parts].map(encodeURIComponent).join("/");
const isMore = (count) => count !== "0";

// Refresh topics, groups and waiting sessions every two seconds.

async function refresh() {
  try {
    const response = await ask("/topics");
    if (response.status === 401) return login(state.token ? "The server does not know this token." : "");
    if (!response.ok) throw new Error((await response.json()).error);
    state.topics = (await response.json()).topics.filter((t) => t.scopes.includes("read"));
    byId("login").hidden = true;
    byId("main").hidden = false;
    byId("forget").hidden = !state.token;
    const away = state.topics.filter((t) => !t.reading).map((t) => t.topic);
    if (!state.topics.length) sign("health", "bad", "this token may not read any topic");
    else if (away.length) sign("health", "bad", "not being read: " + away.join(", "));
    else sign("health", "good", "all topics are being read");
    if (!state.topics.some((t) => t.topic === state.topic)) choose(wanted());
    show();
    await showDead();
  } catch (error) {
    sign("health", "bad", "the server does not answer");
  }
}

// The topic in the page's address, if there is one.
function wanted() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch (error) {
    return ""; // such as #%
  }
}

function choose(name) {
  const topic = state.topics.find((t) => t.topic === name) || state.topics[0];
  if (!topic || topic.topic === state.topic) return;
  state.topic = topic.topic;
  history.replaceState(null, "", "#" + encodeURIComponent(topic.topic));
  state.cursor = "";
  state.waiting = [];
  byId("letters").replaceChildren();
  state.letters = "";
  byId("dead-result").textContent = "";
  empty();
  show();
  follow();
}

function show() {
  const focused = document.activeElement?.dataset?.topic;
  byId("topics").replaceChildren(...state.topics.map((t) => {
    const tr = row([undefined], [t.rate.toFixed(1), "number"], [t.lag ?? "–", "number"], [String(t.clients), "number"]);
    const button = element("button", t.topic, { type: "button", "data-topic": t.topic, title: t.topic });
    button.onclick = () => choose(t.topic);
    tr.firstChild.append(button);
    if (t.topic === state.topic) tr.setAttribute("aria-current", "true");
    return tr;
  }));
  if (focused !== undefined) [...document.querySelectorAll("#topics button")].find((b) => b.dataset.topic === focused)?.focus();
  const topic = state.topics.find((t) => t.topic === state.topic);
  if (!topic) return;
  const groups = (topic.groups || []).map((g) => row(
    [g.group], [g.lag, "number"], [g.dead_letters, isMore(g.dead_letters) ? "number warn" : "number"], [String(g.offset), "number"], [String(g.gaps), "number"],
    [since(g.stored_seconds_ago) + (g.stored_seconds_ago < 1 ? "" : " ago"), "number"], [g.active ? g.member || "active" : "none active" + (g.member ? ", last " + g.member : ""), g.active ? "" : "warn"]));
  byId("groups").replaceChildren(...(groups.length ? groups : [none(7, "No group consumes this topic.")]));
  const gate = topic.gate;
  if (!gate) return;
  sign("trigger", gate.trigger ? "good" : "warn", gate.trigger
    ? "The wake trigger works: every INSERT wakes the listeners."
    : "No wake trigger works: listeners poll, and find rows of other programs up to a second late. mqnotify wake install makes one.");
  byId("leader").textContent = gate.leader
    ? `Session ${gate.leader} leads the gate, and ${gate.followers} more ${gate.followers === 1 ? "session waits" : "sessions wait"} at it.`
    : "No session leads the gate.";
}

function none(columns, text) {
  const tr = row([text, "empty"]);
  tr.firstChild.setAttribute("colspan", columns);
  return tr;
}

// The live tail reads Server-Sent Events with fetch, because EventSource can't send a token.

async function follow() {
  state.stream?.abort();
  const control = (state.stream = new AbortController());
  sign("stream", "", "connecting"); // messages before "live" may be missing
  let wait = 250;
  while (!control.signal.aborted) {
    try {
      const response = await ask(path("events"), { signal: control.signal, headers: state.cursor ? { "Last-Event-ID": state.cursor } : {} });
      if ([400, 409, 431].includes(response.status)) state.cursor = ""; // the table was emptied, or the cursor is invalid
      if (!response.ok) throw new Error(response.status);
      await read(response.body.getReader(), () => {
        wait = 250;
        sign("stream", "good", "live");
      }, control.signal);
    } catch (error) { /* shown below, then tried again */ }
    if (control.signal.aborted) return;
    sign("stream", "bad", "disconnected, reconnecting");
    await new Promise((done) => setTimeout(done, wait * (0.5 + Math.random())));
    wait = Math.min(wait * 2, 5000);
  }
}

async function read(reader, alive, signal) {
  const decoder = new TextDecoder();
  let text = "", id = "", kind = "", data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done || signal.aborted) return;
    alive();
    text += decoder.decode(value, { stream: true });
    const lines = text.split("\n");
    text = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (id) state.cursor = id;
        if (data.length && !kind) take(data.join("\n"));
        kind = "";
        data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const value = line.slice(colon + 1).replace(/^ /, "");
      if (line.startsWith("id:")) id = value;
      else if (line.startsWith("event:")) kind = value;
      else if (line.startsWith("data:")) data.push(value);
    }
  }
}

function take(line) {
  if (state.paused) {
    state.waiting.push(line);
    if (state.waiting.length > most) state.waiting.shift();
    byId("pause").textContent = `Resume (${state.waiting.length})`;
    return;
  }
  add(line);
}

function add(line) {
  const list = byId("tail");
  list.querySelector(".empty")?.remove();
  let message;
  try {
    // Ids may be too large for a JavaScript number.
    message = JSON.parse(line.replace(/^\{"id":(\d+)/, '{"id":"$1"'));
  } catch (error) {
    message = { payload: line };
  }
  const li = element("li");
  const isRow = message.payload === undefined && message.payload_base64 === undefined;
  li.append(element("span", message.id === undefined ? "" : "#" + message.id, { class: "id" }));
  li.append(element("span", message.created_at ? message.created_at.slice(11, 23) : "", { class: "time" }));
  li.append(element("span", isRow ? line : message.payload ?? "base64 " + message.payload_base64, { class: "payload" }));
  const headers = Object.entries((!isRow && message.headers) || {});
  if (headers.length) li.append(element("span", headers.map(([k, v]) => `${k}: ${v}`).join("  "), { class: "headers" }));
  li.hidden = !matches(li);
  list.prepend(li);
  while (list.children.length > most) list.lastChild.remove();
}

function matches(li) {
  return li.textContent.toLowerCase().includes(byId("filter").value.toLowerCase());
}

function empty() {
  byId("tail").replaceChildren(element("li", "New messages are shown here.", { class: "empty" }));
}

function pause() {
  state.paused = !state.paused;
  byId("pause").setAttribute("aria-pressed", state.paused);
  byId("pause").textContent = state.paused ? "Resume" : "Pause";
  if (!state.paused) for (const line of state.waiting.splice(0)) add(line);
}

// Dead letters, for tokens with the scope admin.

async function showDead() {
  const topic = state.topics.find((t) => t.topic === state.topic);
  const allowed = topic?.scopes.includes("admin");
  byId("dead").hidden = !allowed;
  if (!allowed) return;
  let letters = [];
  if ((topic.groups || []).some((g) => isMore(g.dead_letters))) {
    const response = await ask(path("dead-letters"));
    if (!response.ok) return;
    letters = (await response.json()).dead_letters;
  }
  const now = JSON.stringify(letters);
  if (topic.topic !== state.topic || now === state.letters || document.activeElement?.closest("#letters")) return; // don't replace a button that is about to be clicked
  state.letters = now;
  if (!letters.length) return byId("letters").replaceChildren(element("li", "No dead letters.", { class: "empty" }));
  byId("letters").replaceChildren(...letters.map((letter) => {
    const li = element("li");
    li.append(element("span", `#${letter.message_id} of group ${letter.group}, ${letter.attempts} attempt${letter.attempts === 1 ? "" : "s"}, ${new Date(letter.failed_at).toLocaleString()}`));
    const buttons = element("span", undefined, { class: "do" });
    const retry = doing("Retry", `Group ${letter.group} tries it again`, "POST", letter.id, "retry");
    retry.title = `Publishes the message again, at the topic's end; of all groups only ${letter.group} handles it`;
    buttons.append(retry, doing("Delete", "Deleted", "DELETE", letter.id));
    li.append(buttons, element("span", letter.error, { class: "error" }));
    const bytes = Uint8Array.from(atob(letter.payload_base64), (c) => c.charCodeAt(0));
    li.append(element("pre", new TextDecoder().decode(bytes) + (bytes.length < letter.size ? " …" : "")));
    return li;
  }));
}

function doing(text, done, method, id, ...rest) {
  const button = element("button", text, { type: "button" });
  button.onclick = async () => {
    button.disabled = true;
    try {
      const response = await ask(path("dead-letters", String(id), ...rest), { method });
      const answer = await response.json();
      byId("dead-result").textContent = !response.ok ? answer.error : done + (answer.id ? `, as #${answer.id}.` : ".");
      if (response.ok || response.status === 404) {
        button.closest("li").remove();
        state.letters = ""; // the server may still have it: the next update shows that
      }
    } catch (error) {
      byId("dead-result").textContent = "The server does not answer.";
    }
    button.disabled = false;
  };
  return button;
}

// The token is kept in this tab only.

function login(text) {
  state.stream?.abort();
  state.token = state.topic = "";
  sessionStorage.removeItem("token");
  byId("main").hidden = true;
  byId("forget").hidden = true;
  byId("login-error").textContent = text;
  sign("health", "", "a token is needed");
  if (byId("login").hidden) {
    byId("login").hidden = false;
    byId("token").focus();
  }
}

byId("login").onsubmit = (event) => {
  event.preventDefault();
  state.token = byId("token").value.trim();
  sessionStorage.setItem("token", state.token);
  byId("token").value = "";
  refresh();
};
byId("forget").onclick = () => login("");
byId("pause").onclick = pause;
byId("clear").onclick = empty;
byId("filter").oninput = () => {
  for (const li of byId("tail").children) if (!li.classList.contains("empty")) li.hidden = !matches(li);
};

document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT") {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || byId("main").hidden) return;
  const at = state.topics.findIndex((t) => t.topic === state.topic);
  const keys = {
    "/": () => byId("filter").focus(),
    p: pause,
    c: empty,
    j: () => choose(state.topics[Math.min(at + 1, state.topics.length - 1)]?.topic),
    k: () => choose(state.topics[Math.max(at - 1, 0)]?.topic),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

refresh();
setInterval(() => { if (byId("login").hidden) refresh(); }, 2000);
