// What every page knows: who is signed in, and what the fleet runs.

import { ApiError, call, endSession, get, takeSession, whenSignedOut } from './api';
import { connection } from './live.svelte';
import type { Role, Session } from './types';

const RANKS: Record<Role, number> = { viewer: 0, editor: 1, admin: 2 };

class AppState {
  session = $state.raw<Session | null>(null);
  /** Whether the first answer about the session is still to come. */
  starting = $state(true);
  /** The session ended while a page was open. The page stays, so that what was typed is not lost. */
  expired = $state(false);
  /** The name that is being typed, while whoever came by a link is asked for one. */
  naming = $state<string | null>(null);
  toast = $state<{ text: string; kind: 'done' | 'failed' } | null>(null);
  #hide: ReturnType<typeof setTimeout> | undefined;
  #end: ReturnType<typeof setTimeout> | undefined;

  may(role: Role): boolean {
    return this.session !== null && RANKS[this.session.role] >= RANKS[role];
  }

  enter(session: Session | null) {
    if (!session) this.naming = null;
    this.session = session;
    this.expired = false;
    takeSession(session);
    connection.close();
    clearTimeout(this.#end);
    if (!session) return;
    connection.open();
    // Sessions last twelve hours at most; a longer time-out would not fit a timer.
    const left = session.expires_at ? new Date(session.expires_at).getTime() - Date.now() : Infinity;
    if (left < 2 ** 31) this.#end = setTimeout(() => this.#expire(), Math.max(0, left));
  }

  #expire() {
    endSession();
    connection.close();
    this.expired = true;
  }

  async start() {
    whenSignedOut(() => (this.session ? this.#expire() : this.enter(null)));
    try {
      this.enter(await get<Session>('session'));
    } catch (error) {
      if (error instanceof ApiError && error.status === 0) this.say(error.message, 'failed');
      this.enter(null);
    }
    this.starting = false;
  }

  async signIn(token: string) {
    this.enter(await call<Session>('session', { method: 'POST', body: { token } }));
    if (this.session?.unnamed) this.naming = '';
  }

  /** Says who uses a session that was opened with a link. */
  async name(name: string) {
    this.session = await call<Session>('session', { method: 'PUT', body: { name } });
  }

  async signOut() {
    await call('session', { method: 'DELETE' }).catch(() => {});
    this.enter(null);
  }

  say(text: string, kind: 'done' | 'failed' = 'done') {
    this.toast = { text, kind };
    clearTimeout(this.#hide);
    this.#hide = setTimeout(() => (this.toast = null), 6000);
  }
}

export const app = new AppState();
