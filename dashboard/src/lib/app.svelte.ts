// What every page knows: who is logged in, and what the fleet runs.

import { ApiError, call, get, takeSession, whenSignedOut } from './api';
import { connection } from './live.svelte';
import type { Role, Session } from './types';

const RANKS: Record<Role, number> = { viewer: 0, editor: 1, admin: 2 };

class AppState {
  session = $state.raw<Session | null>(null);
  /** Whether the first answer about the session is still to come. */
  starting = $state(true);
  toast = $state<{ text: string; kind: 'done' | 'failed' } | null>(null);
  #hide: ReturnType<typeof setTimeout> | undefined;

  may(role: Role): boolean {
    return this.session !== null && RANKS[this.session.role] >= RANKS[role];
  }

  enter(session: Session | null) {
    this.session = session;
    takeSession(session);
    if (session) connection.open();
    else connection.close();
  }

  async start() {
    whenSignedOut(() => this.enter(null));
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
