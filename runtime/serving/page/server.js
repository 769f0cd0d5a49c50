/* Asks the server, with the reader's key where it wants one. The key is kept in this tab's session storage, nowhere else. */

const KEY = "branchpoint-key";
const PATIENCE = 10000;

class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const server = {
  model: null, // the one chosen, by its first name
  barred: false, // it wants a key, and hasn't been given one that it takes

  /* The response to a request; throws a Problem with the server's own words where it isn't a good one. */
  async ask(path, { body, signal } = {}) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body === undefined ? "GET" : "POST",
        headers, cache: "no-store", credentials: "omit", signal: signal ?? AbortSignal.timeout(PATIENCE),
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "The server doesn't answer.");
    }
    if (response.status === 401) server.wantKey(key);
    if (!response.ok) throw new Problem(response.status, await server.message(response));
    return response;
  },

  async json(path, options) {
    return (await server.ask(path, options)).json();
  },

  async message(response) {
    const text = await response.text();
    try {
      return JSON.parse(text).error.message;
    } catch {
      return `The server answered ${response.status}.`;
    }
  },

  /* The same path, for the model that is chosen. */
  ofModel(path) {
    return server.model === null ? path : `${path}${path.includes("?") ? "&" : "?"}model=${encodeURIComponent(server.model)}`;
  },

  wantKey(refused) {
    if (server.barred || sessionStorage.getItem(KEY) !== refused) return;
    server.barred = true;
    keys.open(refused ? "The server doesn't know this key." : "");
  },
};

const keys = {
  open(told) {
    tell(byId("key-title"), server.barred ? "This server asks for a key" : "API key");
    tell(byId("key-told"), `${told} It is kept in this tab only, and forgotten when the tab is closed.`.trim());
    byId("key-forget").hidden = !sessionStorage.getItem(KEY);
    if (!byId("key-dialog").open) byId("key-dialog").showModal();
    byId("key").focus();
  },

  use(key) {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
    server.barred = false;
    byId("key").value = "";
    byId("key-dialog").close();
    page.begin();
  },

  begin() {
    byId("key-button").addEventListener("click", () => keys.open(""));
    byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
    byId("key-forget").addEventListener("click", () => keys.use(""));
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      keys.use(byId("key").value.trim());
    });
  },
};
