// Data that stays current: fetched when a page opens, again every few seconds and whenever the server says that something
// changed. While a new answer is under way the old one stays.

import { ApiError, get } from './api';

const NAMES = ['hello', 'version', 'versions', 'rules', 'nodes', 'store', 'stores', 'overrides', 'keys/overrides', 'keys', 'stats', 'tokens', 'audit'];

class Connection {
  /** Since when the server has not answered. */
  lostSince = $state<number | null>(null);
  #listeners = new Set<(name: string) => void>();
  #source: EventSource | null = null;

  open() {
    if (this.#source) return;
    const source = new EventSource('admin/v1/events');
    this.#source = source;
    source.onopen = () => (this.lostSince = null);
    source.onerror = () => (this.lostSince ??= Date.now());
    for (const name of NAMES) source.addEventListener(name, () => this.#listeners.forEach((tell) => tell(name)));
  }

  close() {
    this.#source?.close();
    this.#source = null;
    this.lostSince = null;
  }

  listen(tell: (name: string) => void): () => void {
    this.#listeners.add(tell);
    return () => this.#listeners.delete(tell);
  }
}

export const connection = new Connection();

export class Live<T> {
  data = $state.raw<T | null>(null);
  error = $state<ApiError | null>(null);
  loading = $state(true);
  #path: () => string | null;
  #abort: AbortController | null = null;

  /** Call while a component is set up: it ends with the component. */
  constructor(path: () => string | null, everySeconds = 5, on: string[] = []) {
    this.#path = path;
    $effect(() => {
      this.#path();
      void this.refresh();
      const timer = setInterval(() => document.hidden || void this.refresh(), everySeconds * 1000);
      const stop = connection.listen((name) => on.includes(name) && void this.refresh());
      return () => {
        clearInterval(timer);
        stop();
        this.#abort?.abort();
      };
    });
  }

  async refresh() {
    const path = this.#path();
    this.#abort?.abort();
    if (path === null) {
      this.data = null;
      this.loading = false;
      return;
    }
    const abort = (this.#abort = new AbortController());
    try {
      this.data = await get<T>(path, abort.signal);
      this.error = null;
      this.loading = false;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.error = error instanceof ApiError ? error : new ApiError(0, String(error));
      this.loading = false;
    }
  }
}

/** The time, once a second, for what is shown relative to it. */
class Clock {
  now = $state(Date.now());
  constructor() {
    setInterval(() => (this.now = Date.now()), 1000);
  }
}

export const clock = new Clock();
