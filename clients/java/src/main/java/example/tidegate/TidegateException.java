package example.tidegate;

/** What can go wrong, split by what the caller does next. A refusal by a limit is a decision, not an exception. */
public abstract class TidegateException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    TidegateException(String message, Throwable cause) {
        super(message, cause);
    }

    /** Why no decision came. */
    public enum Reason { UNREACHABLE, TIMEOUT, TLS, PROTOCOL, SERVER }

    /** No decision came in time. The failure policy applies. */
    public static final class Unavailable extends TidegateException {
        private static final long serialVersionUID = 1L;
        /** Why. */
        public final Reason reason;

        Unavailable(String message, Reason reason, Throwable cause) {
            super(message, cause);
            this.reason = reason;
        }
    }

    /** The server refuses the token, or wants one. The failure policy applies. */
    public static final class Unauthorized extends TidegateException {
        private static final long serialVersionUID = 1L;

        Unauthorized(int status) {
            super("the server refuses the token (" + status + "): set token to one of access.tokens", null);
        }
    }

    /** The server cannot read the request, or has no such domain. Never hidden by the failure policy. */
    public static final class InvalidRequest extends TidegateException {
        private static final long serialVersionUID = 1L;
        /** The status of the answer. */
        public final int status;
        /** The field at fault, or null. */
        public final String field;

        InvalidRequest(String message, int status, String field) {
            super(message, null);
            this.status = status;
            this.field = field;
        }
    }

    /** The lease is over: released, or older than its time to live. */
    public static final class LeaseEnded extends TidegateException {
        private static final long serialVersionUID = 1L;

        LeaseEnded(String message) {
            super(message, null);
        }
    }

    /** Thrown by {@link Client#lease} and {@link Client#acquire} where a limit refuses. */
    public static final class RateLimited extends TidegateException {
        private static final long serialVersionUID = 1L;
        /** Which limit, and until when. */
        public final transient Decision decision;

        RateLimited(Decision decision) {
            super("refused by " + (decision.rule() == null ? decision.source() : decision.rule())
                    + decision.retryAfter().map(wait -> ", try again in " + wait.toMillis() + " ms").orElse(""), null);
            this.decision = decision;
        }
    }
}
