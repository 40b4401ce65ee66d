// Data that stays current: fetched when a page opens, again every few seconds and whenever the server says that something
// changed. While a new answer is under way the old one stays.

import { ApiError, get } from './api';
import { Asker, LONGEST_ANSWER_MS, NoAnswer } from './asker';

const NAMES = ['hello', 'version', 'versions', 'rules', 'nodes', 'store', 'stores', 'overrides', 'keys/overrides', 'keys', 'stats', 'tokens', 'audit', 'alerts'];

/** Between tries to reach a server that does not answer: at first soon, then not more often than this. */
const LONGEST_WAIT_MS = 10_000;
/** The server says something every second. When it says nothing for so long, it hangs, or what is in between does. */
const SILENT_MS = 8_000;

class Connection {
  /** Since when the server has not answered. */
  lostSince = $state<number | null>(null);
  /** When it is asked again. */
  retryAt = $state<number | null>(null);
  #listeners = new Set<(name: string) => void>();
  #source: EventSource | null = null;
  #tries = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #watch: ReturnType<typeof setInterval> | undefined;
  #heard = 0;

  open() {
    if (this.#source) return;
    clearTimeout(this.#timer);
    this.retryAt = null;
    const source = new EventSource('admin/v1/events');
    this.#source = source;
    this.#heard = Date.now();
    source.onerror = () => this.#lost(Date.now());
    for (const name of NAMES) {
      source.addEventListener(name, () => {
        this.#heard = Date.now();
        if (name === 'hello') {
          const again = this.lostSince !== null;
          this.lostSince = null;
          this.#tries = 0;
          if (!again) return;
        }
        this.#listeners.forEach((tell) => tell(name));
      });
    }
    clearInterval(this.#watch);
    this.#watch = setInterval(() => !document.hidden && Date.now() - this.#heard > SILENT_MS && this.#lost(this.#heard), 1000);
  }

  #lost(since: number) {
    clearInterval(this.#watch);
    this.#source?.close();
    this.#source = null;
    this.lostSince ??= since;
    const wait = Math.min(LONGEST_WAIT_MS, 1000 * 2 ** this.#tries++);
    this.retryAt = Date.now() + wait;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.open(), wait);
  }

  retryNow() {
    this.#tries = 0;
    this.open();
  }

  close() {
    clearTimeout(this.#timer);
    clearInterval(this.#watch);
    this.#source?.close();
    this.#source = null;
    this.#tries = 0;
    this.lostSince = this.retryAt = null;
  }

  listen(tell: (name: string) => void): () => void {
    this.#listeners.add(tell);
    return () => this.#listeners.delete(tell);
  }
}

export const connection = new Connection();

/** Asks after a pause, and drops the question when something newer is to be asked: the way to end it, for an effect. */
export function soon(ms: number, ask: (signal: AbortSignal) => Promise<void>): () => void {
  const abort = new AbortController();
  const timer = setTimeout(() => void ask(abort.signal), ms);
  return () => {
    clearTimeout(timer);
    abort.abort();
  };
}

export class Live<T> {
  data = $state.raw<T | null>(null);
  error = $state<ApiError | null>(null);
  loading = $state(true);
  #path: () => string | null;
  #everySeconds = 5;
  /** The path that `data` is the answer to. */
  #shown: string | null = null;
  #asker = new Asker<T>(
    // What is asked again may be as old as the time between: so ten screens cost the fleet one question.
    (path, signal, again) => get<T>(path, signal, again ? this.#everySeconds : undefined),
    (answer, path) => {
      this.data = answer;
      this.#shown = path;
      this.error = null;
      this.loading = false;
    },
    (error) => {
      this.error = errorOf(error);
      this.loading = false;
    },
  );

  /** Call while a component is set up: it ends with the component. */
  constructor(path: () => string | null, everySeconds = 5, on: string[] = []) {
    this.#path = path;
    this.#everySeconds = everySeconds;
    $effect(() => {
      // Another range or rule: what is shown stays, dimmed, until the answer comes.
      if (this.#path() !== this.#shown) this.loading = true;
      void this.refresh();
      const timer = setInterval(() => document.hidden || this.#with((path) => this.#asker.again(path)), everySeconds * 1000);
      const stop = connection.listen((name) => (name === 'hello' || on.includes(name)) && this.#with((path) => this.#asker.changed(path)));
      return () => {
        clearInterval(timer);
        stop();
        this.#asker.stop();
      };
    });
  }

  #with(ask: (path: string) => void) {
    const path = this.#path();
    if (path !== null) ask(path);
  }

  /** Asks now, after the reader changed something. */
  async refresh() {
    const path = this.#path();
    if (path !== null) return this.#asker.ask(path);
    this.#asker.stop();
    this.data = null;
    this.loading = false;
  }
}

/** A failure as pages show it. */
export function errorOf(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof NoAnswer) return new ApiError(0, `The server has not answered this for ${LONGEST_ANSWER_MS / 1000} s.`, 'What is shown is older. It is asked again.');
  return new ApiError(0, String(error));
}

/** The time, once a second, for what is shown relative to it. */
class Clock {
  now = $state(Date.now());
  constructor() {
    setInterval(() => (this.now = Date.now()), 1000);
  }
}

export const clock = new Clock();
