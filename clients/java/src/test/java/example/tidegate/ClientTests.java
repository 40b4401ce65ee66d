package example.tidegate;

import static example.tidegate.Servers.fresh;
import static example.tidegate.Tests.equal;
import static example.tidegate.Tests.test;
import static example.tidegate.Tests.thrown;

import example.tidegate.Client.Check;
import example.tidegate.Client.OnFailure;
import example.tidegate.TidegateException.InvalidRequest;
import example.tidegate.TidegateException.LeaseEnded;
import example.tidegate.TidegateException.RateLimited;
import example.tidegate.TidegateException.Reason;
import example.tidegate.TidegateException.Unauthorized;
import example.tidegate.TidegateException.Unavailable;
import java.io.InputStream;
import java.net.http.HttpClient;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

final class ClientTests {
    /** Long enough for a busy machine. */
    static final Duration PATIENT = Duration.ofSeconds(20);

    private ClientTests() {}

    static Client.Builder to(String url) {
        return Client.to(url.contains("://") ? url : "http://" + url).domain("clients").deadline(PATIENT);
    }

    static void run() throws Exception {
        String server = Servers.tidegate("");
        questions(to(server).build(), server);
        failures();
        test("token is sent, and a wrong one is named", () -> {
            String locked = Servers.tidegate("access: { tokens: ['" + Servers.TOKEN + "'] }\n");
            to(locked).token(Servers.TOKEN).build().ping();
            equal(thrown(Unauthorized.class, () -> to(locked).build().ping()).getMessage().contains("access.tokens"), true);
            thrown(Unauthorized.class, () -> to(locked).token("another-token-of-the-tests").build().ping());
            equal(to(locked).onFailure(OnFailure.OPEN).onError(error -> {}).build().check(Map.of()).allowed(), true);
        });
        test("certificate of another is an error", () -> {
            Path folder = Servers.folder();
            Servers.certificate(folder, "server");
            Servers.certificate(folder, "another");
            String files = "certificate: '" + folder + "/server.pem', key: '" + folder + "/server.key'";
            String secure = "https://" + Servers.tidegate("tls: { http: { " + files + " } }\n");
            to(secure).http(trusting(folder.resolve("server.pem"))).build().ping();
            unavailable(to(secure).http(trusting(folder.resolve("another.pem"))).build(), Reason.TLS);
            unavailable(to(secure).build(), Reason.TLS);
        });
    }

    private static void questions(Client client, String server) {
        test("limit passes three and refuses the fourth, with headers", () -> {
            Map<String, String> user = Map.of("user", fresh());
            List<Decision> decisions = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                decisions.add(client.check(user));
            }
            Decision first = decisions.get(0);
            Decision last = decisions.get(3);
            equal(List.of(first.allowed(), first.status(), first.rule(), first.limit(), first.remaining(), first.source()),
                    List.of(true, 200, "per-user", 3L, 2L, "store"));
            equal(decisions.stream().map(Decision::status).toList(), List.of(200, 200, 200, 429));
            equal(first.headers().get("x-ratelimit-remaining"), "2");
            equal(first.headers().containsKey("content-type"), false);
            equal(last.headers().get("retry-after").matches("3[0-6]\\d\\d"), true);
            equal(last.retryAfter().get().toSeconds() >= 3000, true);
        });
        test("cost 0 looks without spending", () -> {
            Check look = Check.of(Map.of("user", fresh())).cost(0);
            client.check(look);
            equal(client.check(look).remaining(), 3L);
        });
        test("no rule is allowed by none", () -> {
            Decision decision = client.check(Map.of());
            equal(List.of(decision.allowed(), decision.source(), decision.headers()), List.of(true, "none", Map.of()));
        });
        test("batch answers in order", () -> {
            Check check = Check.of(Map.of("user", fresh()));
            List<Decision> decisions = client.batch(List.of(check, check.cost(3), check.cost(2)));
            equal(decisions.stream().map(Decision::status).toList(), List.of(200, 429, 200));
        });
        test("refund returns hits to the window that was charged", () -> {
            Map<String, String> user = Map.of("user", fresh());
            String spent = client.check(Check.of(user).cost(3)).spent();
            client.refund(user, 2, spent);
            equal(client.check(Check.of(user).cost(0)).remaining(), 2L);
        });
        test("charge may leave a debt", () -> {
            Map<String, String> model = Map.of("model", fresh());
            client.charge(model, 500);
            equal(client.check(model).allowed(), false);
        });
        test("request id is charged once", () -> {
            Check check = Check.of(Map.of("user", fresh())).requestId("r-1");
            client.check(check);
            equal(client.check(check).remaining(), 2L);
        });
        test("lease holds the only slot and returns it", () -> {
            Map<String, String> tenant = Map.of("tenant", fresh());
            try (Client.Lease lease = client.lease(tenant)) {
                lease.renew();
                equal(thrown(RateLimited.class, () -> client.lease(tenant)).decision.rule(), "uploads");
            }
            String held = client.check(tenant).lease();
            client.release(held);
            thrown(LeaseEnded.class, () -> client.renew(held));
        });
        test("acquire waits as the server says, and gives up at once if that takes too long", () -> {
            Map<String, String> caller = Map.of("refilled", fresh());
            for (int i = 0; i < 3; i++) {
                equal(client.acquire(caller, PATIENT).allowed(), true);
            }
            Map<String, String> user = Map.of("user", fresh());
            client.check(Check.of(user).cost(3));
            thrown(RateLimited.class, () -> client.acquire(user, Duration.ofMinutes(1)));
        });
        test("usage shows what is left", () -> {
            Map<String, String> user = Map.of("user", fresh());
            client.check(user);
            equal(client.usage(user).toString().contains("remaining=2.0"), true);
        });
        test("any text is a value", () -> {
            Map<String, String> user = Map.of("user", "\"\\ \n \u0001 é € 𝄞 " + fresh());
            client.check(user);
            equal(client.check(user).remaining(), 1L);
        });
        test("mistake names its field whatever the policy", () -> {
            Client open = to(server).onFailure(OnFailure.OPEN).build();
            InvalidRequest error = thrown(InvalidRequest.class, () -> open.check(Check.of(Map.of()).domain("nowhere")));
            equal(List.of(error.status, error.field, error.getMessage().contains("clients")), List.of(422, "domain", true));
        });
    }

    private static void failures() {
        test("wrong settings are errors at once", () -> {
            for (String url : List.of("127.0.0.1:8080", "ftp://x", "http://", "http://x y", "http://user:secret@x")) {
                thrown(IllegalArgumentException.class, () -> Client.to(url).domain("x").build());
            }
            thrown(IllegalArgumentException.class, () -> Client.to("http://x").build());
            thrown(IllegalArgumentException.class, () -> to("http://x").token("a\nb").build());
            thrown(IllegalArgumentException.class, () -> to("http://x").deadline(Duration.ZERO).build());
        });
        test("host that does not exist is an error within the deadline", () ->
                inTime(to("http://no-such-host.invalid:8080"), Duration.ofSeconds(1),
                        Reason.UNREACHABLE, Reason.TIMEOUT));
        test("server that is down is an error", () -> unavailable(to(Servers.nobody()).build(), Reason.UNREACHABLE));
        test("server that never answers or ends is an error within the deadline", () -> {
            for (String says : List.of("", "HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n{")) {
                inTime(to(new Servers.Silent(says).url), Duration.ofMillis(300), Reason.TIMEOUT);
            }
        });
        test("something else that speaks is an error", () -> {
            for (String says : List.of("220 mail.example ready\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")) {
                unavailable(to(new Servers.Silent(says).url).build(), Reason.PROTOCOL);
            }
        });
        test("policy decides where no server answers", () -> {
            List<TidegateException> errors = new ArrayList<>();
            Client.Builder gone = to(Servers.nobody()).onError(errors::add);
            Decision passed = gone.onFailure(OnFailure.OPEN).build().check(Map.of());
            equal(List.of(passed.allowed(), passed.source()), List.of(true, "client_open"));
            Decision refused = gone.onFailure(OnFailure.CLOSED).build().check(Map.of());
            equal(List.of(refused.allowed(), refused.source(), refused.status()), List.of(false, "client_closed", 503));
            equal(errors.size(), 2);
        });
        test("retries carry one request id", () -> {
            Servers.Silent peer = new Servers.Silent("");
            unavailable(to(peer.url).deadline(Duration.ofSeconds(2)).retries(2).build(), Reason.TIMEOUT);
            List<String> ids = peer.received.stream().map(ClientTests::requestId).collect(Collectors.toList());
            equal(List.of(ids.size(), new HashSet<>(ids).size()), List.of(3, 1));
            unavailable(to(peer.url).deadline(Duration.ofMillis(500)).build(), Reason.TIMEOUT);
            equal(peer.received.size(), 4);
        });
    }

    private static String requestId(String request) {
        Matcher found = Pattern.compile("\"request_id\":\"[^\"]+\"").matcher(request);
        equal(found.find(), true);
        return found.group();
    }

    /** That a check fails for one of these reasons within the deadline and half of it again; a busy machine may be late, but not thrice. */
    private static void inTime(Client.Builder builder, Duration deadline, Reason... reasons) {
        Client client = builder.deadline(deadline).build();
        List<Long> took = new ArrayList<>();
        while (took.size() < 3) {
            long begun = System.nanoTime();
            unavailable(client, reasons);
            took.add(System.nanoTime() - begun);
            if (took.get(took.size() - 1) < deadline.toNanos() * 3 / 2) {
                return;
            }
        }
        throw new AssertionError(took + " ns, three times in a row");
    }

    /** That a check fails for one of these reasons. */
    private static void unavailable(Client client, Reason... reasons) {
        Unavailable error = thrown(Unavailable.class, () -> client.check(Map.of("user", "x")));
        if (!List.of(reasons).contains(error.reason)) {
            throw new AssertionError(error.reason + ": " + error.getMessage(), error);
        }
    }

    private static HttpClient trusting(Path pem) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (InputStream file = Files.newInputStream(pem)) {
            store.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return HttpClient.newBuilder().sslContext(context).build();
    }
}
