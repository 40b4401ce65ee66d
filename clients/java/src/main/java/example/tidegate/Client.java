package example.tidegate;

import example.tidegate.TidegateException.InvalidRequest;
import example.tidegate.TidegateException.LeaseEnded;
import example.tidegate.TidegateException.RateLimited;
import example.tidegate.TidegateException.Reason;
import example.tidegate.TidegateException.Unauthorized;
import example.tidegate.TidegateException.Unavailable;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.UnresolvedAddressException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Function;
import javax.net.ssl.SSLException;

/**
 * Asks tidegate, a distributed rate limiter, over HTTP, on connections that are kept. Threads may share one.
 *
 * <pre>{@code
 * Client client = Client.to("http://127.0.0.1:8080").domain("api").onFailure(Client.OnFailure.OPEN).build();
 * boolean allowed = client.check(Map.of("user", "42")).allowed();
 * }</pre>
 */
public final class Client {
    private static final System.Logger LOG = System.getLogger("tidegate");
    private static final long QUIET_NANOS = TimeUnit.SECONDS.toNanos(10);

    /** What holds without an answer in time. */
    public enum OnFailure {
        /** The exception is thrown; the default. */
        THROW,
        /** The request passes. */
        OPEN,
        /** It is refused, with status 503. */
        CLOSED
    }

    private final String base;
    private final Builder settings;
    private final HttpClient http;
    private final AtomicLong warned = new AtomicLong(System.nanoTime() - QUIET_NANOS);

    private Client(String base, Builder settings) {
        this.base = base;
        this.settings = settings;
        this.http = settings.http != null ? settings.http
                : HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    }

    /** Settings of a client for a URL such as {@code http://127.0.0.1:8080}. */
    public static Builder to(String url) {
        return new Builder(url);
    }

    /** Settings of a client. */
    public static final class Builder {
        private final String url;
        private String domain;
        private String token;
        private Duration deadline = Duration.ofMillis(250);
        private OnFailure onFailure = OnFailure.THROW;
        private int retries;
        private HttpClient http;
        private Consumer<TidegateException> onError;

        private Builder(String url) {
            this.url = url;
        }

        /** Whose rules apply, unless a call names another. Required. */
        public Builder domain(String domain) {
            this.domain = domain;
            return this;
        }

        /** One of the server's {@code access.tokens}. */
        public Builder token(String token) {
            this.token = token;
            return this;
        }

        /** How long a call may take, retries included: 250 ms by default. */
        public Builder deadline(Duration deadline) {
            this.deadline = deadline;
            return this;
        }

        /** What holds without an answer in time. */
        public Builder onFailure(OnFailure onFailure) {
            this.onFailure = onFailure;
            return this;
        }

        /** How often to ask again, within the deadline. Checks then carry a request id, so none is charged twice. */
        public Builder retries(int retries) {
            this.retries = retries;
            return this;
        }

        /** Another HTTP client, with certificates of your own. */
        public Builder http(HttpClient http) {
            this.http = http;
            return this;
        }

        /** Gets each exception that the failure policy hides; by default one warning in ten seconds is logged. */
        public Builder onError(Consumer<TidegateException> onError) {
            this.onError = onError;
            return this;
        }

        /** The client. It does not connect; {@link Client#ping} does. Throws IllegalArgumentException for wrong settings. */
        public Client build() {
            String hint = "expected a URL such as http://127.0.0.1:8080";
            URI uri;
            try {
                uri = URI.create(url);
            } catch (IllegalArgumentException error) {
                throw new IllegalArgumentException("not an address: " + error.getMessage() + "; " + hint, error);
            }
            boolean known = "http".equals(uri.getScheme()) || "https".equals(uri.getScheme());
            if (!known || uri.getHost() == null) {
                throw new IllegalArgumentException(url + " is not an address; " + hint);
            }
            if (uri.getUserInfo() != null || uri.getQuery() != null || uri.getFragment() != null) {
                throw new IllegalArgumentException(uri.getHost() + ": more than an address; " + hint + ", and the token apart");
            }
            if (domain == null || domain.isEmpty()) {
                throw new IllegalArgumentException("domain is missing");
            }
            if (deadline.isNegative() || deadline.isZero() || retries < 0) {
                throw new IllegalArgumentException("deadline must be above 0, and retries not negative");
            }
            if (token != null && !token.chars().allMatch(c -> c > ' ' && c < 127)) {
                throw new IllegalArgumentException("token has characters that a header cannot hold");
            }
            return new Client(url.replaceAll("/+$", ""), this);
        }
    }

    /** One check: what describes it, and what it costs. */
    public record Check(Map<String, String> attributes, long cost, String domain, String requestId) {
        /** A check of one hit in the client's domain. */
        public static Check of(Map<String, String> attributes) {
            return new Check(attributes, 1, null, null);
        }

        /** The same with this cost; 0 looks without spending. */
        public Check cost(long cost) {
            return new Check(attributes, cost, domain, requestId);
        }

        /** The same in another domain. */
        public Check domain(String domain) {
            return new Check(attributes, cost, domain, requestId);
        }

        /** The same with a request id: a retry within a minute gets the first answer. */
        public Check requestId(String requestId) {
            return new Check(attributes, cost, domain, requestId);
        }
    }

    /** A question, and how its answer is read. */
    private record Call<T>(String path, Object payload, Function<Answer, T> read,
            BiFunction<Boolean, TidegateException, T> fallback, boolean repeatable) {}

    private record Answer(HttpResponse<String> response, Map<?, ?> body) {}

    /** Decides one request of one hit. */
    public Decision check(Map<String, String> attributes) {
        return check(Check.of(attributes));
    }

    /** Decides one request, and spends its cost if it passes. */
    public Decision check(Check check) {
        Map<String, Object> payload = payload(check);
        return run(new Call<>("/v1/check", payload, answer -> {
            if (!(answer.body.get("allowed") instanceof Boolean)) {
                throw strange("no decision");
            }
            return Decision.read(answer.body, answer.response.statusCode(), answer.response.headers());
        }, Decision::ofFailure, payload.containsKey("request_id")));
    }

    /** Decides several requests in one call, each on its own. */
    public List<Decision> batch(List<Check> checks) {
        List<Map<String, Object>> payloads = checks.stream().map(this::payload).toList();
        boolean repeatable = payloads.stream().allMatch(payload -> payload.containsKey("request_id"));
        return run(new Call<>("/v1/check/batch", Map.of("checks", payloads), answer -> {
            if (!(answer.body.get("decisions") instanceof List<?> found) || found.size() != checks.size()) {
                throw strange("other decisions");
            }
            List<Decision> decisions = new ArrayList<>();
            for (Object one : found) {
                if (!(one instanceof Map<?, ?> body) || !(body.get("allowed") instanceof Boolean allowed)) {
                    throw strange("no decision");
                }
                int refused = "store_unavailable".equals(body.get("error")) ? 503 : 429;
                decisions.add(Decision.read(body, allowed ? 200 : refused, null));
            }
            return List.copyOf(decisions);
        }, (allowed, error) -> checks.stream().map(check -> Decision.ofFailure(allowed, error)).toList(), repeatable));
    }

    /**
     * Spends an amount that is known only afterwards, such as tokens of an answer. Rules with {@code over: debt} spend it even where
     * less is left; others refuse, and spend nothing.
     */
    public Decision charge(Map<String, String> attributes, long amount) {
        return check(Check.of(attributes).cost(amount));
    }

    /** Gives hits back; with {@link Decision#spent}, into the window that was charged. */
    public void refund(Map<String, String> attributes, long amount, String spent) {
        Map<String, Object> payload = new LinkedHashMap<>();
        payload.put("domain", settings.domain);
        payload.put("attributes", attributes);
        payload.put("amount", amount);
        if (spent != null) {
            payload.put("spent", spent);
        }
        if (settings.retries > 0) {
            payload.put("request_id", UUID.randomUUID().toString());
        }
        // Hits that are not given back stay spent, which is the safe side: neither policy needs to stop the caller.
        tell("/v1/refund", payload, settings.retries > 0);
    }

    /** What is left under every rule that matches, as maps and lists; spends nothing. */
    public Map<?, ?> usage(Map<String, String> attributes) {
        Map<String, Object> payload = Map.of("domain", settings.domain, "attributes", attributes);
        return run(new Call<>("/v1/usage", payload, Answer::body, null, true));
    }

    /** Ends a lease. Twice does no harm. */
    public void release(String lease) {
        tell("/v1/release", Map.of("lease", lease), true);
    }

    /** Gives a lease another time to live; throws LeaseEnded where it is over. */
    public void renew(String lease) {
        tell("/v1/renew", Map.of("lease", lease), true);
    }

    /** Throws unless the server can be reached, shows the right certificate and takes the token. */
    public void ping() {
        // Not /healthz: that needs no token, so it would not find a wrong one.
        run(new Call<>("/openapi.json", null, answer -> null, null, true));
    }

    /** A held concurrency slot, for try-with-resources. */
    public final class Lease implements AutoCloseable {
        private final Decision decision;

        private Lease(Decision decision) {
            this.decision = decision;
        }

        /** The decision that gave it. */
        public Decision decision() {
            return decision;
        }

        /** Gives it another time to live. */
        public void renew() {
            if (decision.lease() != null) {
                Client.this.renew(decision.lease());
            }
        }

        /** Returns the slot. A failure is reported, not thrown: the lease ends with its time to live. */
        @Override
        public void close() {
            releaseQuietly(decision.lease());
        }
    }

    /** Takes a concurrency slot; throws RateLimited where none is free. */
    public Lease lease(Map<String, String> attributes) {
        Decision decision = check(attributes);
        if (!decision.allowed()) {
            throw new RateLimited(decision);
        }
        return new Lease(decision);
    }

    /** Ends a lease, if it is one. */
    public void releaseQuietly(String lease) {
        if (lease == null) {
            return;
        }
        try {
            release(lease);
        } catch (TidegateException error) {
            report(error);
        }
    }

    /**
     * Checks until allowed, waiting as the server says and a little longer, at most {@code wait} in all; throws RateLimited where that
     * would take longer.
     */
    public Decision acquire(Map<String, String> attributes, Duration wait) throws InterruptedException {
        long until = System.nanoTime() + wait.toNanos();
        while (true) {
            Decision decision = check(attributes);
            if (decision.allowed()) {
                Thread.sleep(decision.delay().toMillis());
                return decision;
            }
            if (decision.retryAfter().isEmpty()) {
                throw new RateLimited(decision);
            }
            double random = ThreadLocalRandom.current().nextDouble();
            long pause = (long) (decision.retryAfter().get().toNanos() * (1 + 0.1 * random) + 1e7 * random);
            if (System.nanoTime() + pause - until > 0) {
                throw new RateLimited(decision);
            }
            TimeUnit.NANOSECONDS.sleep(pause);
        }
    }

    private Map<String, Object> payload(Check check) {
        Map<String, Object> payload = new LinkedHashMap<>();
        payload.put("domain", check.domain() == null ? settings.domain : check.domain());
        payload.put("attributes", check.attributes());
        payload.put("cost", check.cost());
        if (check.requestId() != null) {
            payload.put("request_id", check.requestId());
        } else if (settings.retries > 0) {
            payload.put("request_id", UUID.randomUUID().toString());
        }
        return payload;
    }

    private void tell(String path, Object payload, boolean repeatable) {
        run(new Call<Void>(path, payload, answer -> null, (allowed, error) -> null, repeatable));
    }

    private <T> T run(Call<T> call) {
        try {
            return ask(call);
        } catch (Unavailable | Unauthorized error) {
            if (call.fallback == null || settings.onFailure == OnFailure.THROW) {
                throw error;
            }
            report(error);
            return call.fallback.apply(settings.onFailure == OnFailure.OPEN, error);
        }
    }

    private void report(TidegateException error) {
        if (settings.onError != null) {
            settings.onError.accept(error);
            return;
        }
        long now = System.nanoTime();
        long last = warned.get();
        if (now - last >= QUIET_NANOS && warned.compareAndSet(last, now)) {
            LOG.log(System.Logger.Level.WARNING, "fails " + settings.onFailure + ": " + error.getMessage());
        }
    }

    private <T> T ask(Call<T> call) {
        long until = System.nanoTime() + settings.deadline.toNanos();
        int tries = 1 + (call.repeatable ? settings.retries : 0);
        while (true) {
            try {
                // Each try gets an equal part of what is left, or the first would use it all.
                return call.read.apply(exchange(call, (until - System.nanoTime()) / tries));
            } catch (Unavailable error) {
                tries--;
                long left = until - System.nanoTime();
                if (tries == 0 || left <= 0 || Thread.currentThread().isInterrupted()) {
                    throw error;
                }
                try {
                    TimeUnit.NANOSECONDS.sleep(Math.min(left, ThreadLocalRandom.current().nextLong(20_000_000)));
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                    throw error;
                }
            }
        }
    }

    private Answer exchange(Call<?> call, long withinNanos) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(base + call.path)).header("accept", "application/json");
        if (settings.token != null) {
            request.header("authorization", "Bearer " + settings.token);
        }
        if (call.payload != null) {
            request.header("content-type", "application/json").POST(HttpRequest.BodyPublishers.ofString(Json.write(call.payload)));
        }
        // Not HttpRequest.timeout: that ends with the headers, and a body may take for ever.
        CompletableFuture<HttpResponse<String>> sent = http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString());
        try {
            HttpResponse<String> response = sent.get(Math.max(1, withinNanos), TimeUnit.NANOSECONDS);
            return new Answer(response, readBody(response.statusCode(), response.body()));
        } catch (TimeoutException error) {
            sent.cancel(true);
            throw new Unavailable(base + " did not answer within " + settings.deadline.toMillis() + " ms", Reason.TIMEOUT, error);
        } catch (InterruptedException error) {
            sent.cancel(true);
            Thread.currentThread().interrupt();
            throw new Unavailable("interrupted while waiting for " + base, Reason.TIMEOUT, error);
        } catch (ExecutionException error) {
            throw explained(error.getCause());
        }
    }

    /** What the HTTP client throws, in words of ours. */
    private Unavailable explained(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof SSLException) {
                String hint = "http(...) takes a client that trusts the authority that signed its certificate";
                return new Unavailable("cannot trust " + base + ": " + cause.getMessage() + "; " + hint, Reason.TLS, error);
            }
            if (cause instanceof UnresolvedAddressException) {
                return new Unavailable("cannot reach " + base + ": the name has no address", Reason.UNREACHABLE, error);
            }
        }
        if (error instanceof ConnectException) {
            String why = error.getMessage() == null ? "connection refused" : error.getMessage();
            return new Unavailable("cannot reach " + base + ": " + why, Reason.UNREACHABLE, error);
        }
        return new Unavailable(base + " did not answer with HTTP: " + error.getMessage(), Reason.PROTOCOL, error);
    }

    /** The body of an answer that is one; otherwise throws what it means. */
    private static Map<?, ?> readBody(int status, String text) {
        if (status == 401 || status == 403) {
            throw new Unauthorized(status);
        }
        Map<?, ?> body;
        try {
            body = (Map<?, ?>) Json.read(text);
        } catch (IllegalArgumentException | ClassCastException error) {
            throw strange("status " + status + " without JSON");
        }
        if (status == 200 || body.get("allowed") instanceof Boolean) {
            return body;
        }
        String detail = body.get("detail") instanceof String found ? found : "status " + status;
        if (status == 410) {
            throw new LeaseEnded(detail);
        }
        if (status >= 500 || status == 408 || status == 429) {
            throw new Unavailable("the server answered " + status + ": " + detail, Reason.SERVER, null);
        }
        String message = body.get("hint") instanceof String hint ? detail + "; " + hint : detail;
        throw new InvalidRequest(message, status, body.get("field") instanceof String field ? field : null);
    }

    private static Unavailable strange(String what) {
        return new Unavailable("the server's answer has " + what + ": is it tidegate's HTTP listener?", Reason.PROTOCOL, null);
    }
}
