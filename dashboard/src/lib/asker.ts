// One question at a time. A timer does not ask again while the same is under way: an answer that takes longer than the timer's
// interval would otherwise never come, and what is shown would stand still without a word, just while the store is slow.

/** After so long without an answer, that is said, and the question is asked anew. */
export const LONGEST_ANSWER_MS = 30_000;

export class NoAnswer extends Error {}

export class Asker<T> {
  #pending: { about: string; abort: AbortController } | null = null;
  /** What it is about changed while it was under way: the answer may be from before. */
  #changed = false;

  constructor(
    private readonly question: (about: string, signal: AbortSignal, again: boolean) => Promise<T>,
    private readonly got: (answer: T, about: string) => void,
    private readonly failed: (error: unknown) => void,
  ) {}

  /** Asks now. What is under way is dropped, and so is its answer. */
  async ask(about: string, again = false): Promise<void> {
    this.stop();
    const abort = new AbortController();
    const pending = (this.#pending = { about, abort });
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, no) => {
      timer = setTimeout(() => no(new NoAnswer()), LONGEST_ANSWER_MS);
    });
    try {
      const answer = await Promise.race([this.question(about, abort.signal, again), late]);
      if (this.#pending === pending) this.got(answer, about);
    } catch (error) {
      if (this.#pending === pending) this.failed(error);
      if (error instanceof NoAnswer) abort.abort();
    }
    clearTimeout(timer);
    if (this.#pending !== pending) return;
    this.#pending = null;
    if (this.#changed) await this.ask(about);
  }

  /** Asks as a timer does: not while the same is under way, and says that nothing changed but the time. */
  again(about: string): void {
    if (this.#pending?.about !== about) void this.ask(about, true);
  }

  /** Asks because what it is about changed: once more behind the answer that is under way, however often it changes meanwhile. */
  changed(about: string): void {
    if (this.#pending?.about === about) this.#changed = true;
    else void this.ask(about);
  }

  stop(): void {
    this.#pending?.abort.abort();
    this.#pending = null;
    this.#changed = false;
  }
}
