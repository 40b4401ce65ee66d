package example.tidegate;

import static example.tidegate.Servers.fresh;
import static example.tidegate.Tests.equal;
import static example.tidegate.Tests.test;

import example.tidegate.Client.OnFailure;
import example.tidegate.servlet.RateLimitFilter;
import jakarta.servlet.AsyncContext;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.catalina.Context;
import org.apache.catalina.Wrapper;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;

/** The filter in a real Tomcat, asking the real tidegate. */
final class FilterTests {
    private static final HttpClient HTTP = HttpClient.newHttpClient();

    private FilterTests() {}

    static void run() throws Exception {
        String limiter = Servers.tidegate("");
        Client client = ClientTests.to(limiter).build();
        String web = tomcat(new RateLimitFilter(client, FilterTests::byHeaders));
        test("three pass with headers, and the fourth is refused", () -> {
            String user = fresh();
            HttpResponse<String> first = get(web, "x-user", user);
            equal(List.of(first.statusCode(), first.body(), first.headers().firstValue("x-ratelimit-remaining").get()),
                    List.of(200, "hello", "2"));
            get(web, "x-user", user);
            get(web, "x-user", user);
            HttpResponse<String> last = get(web, "x-user", user);
            equal(last.statusCode(), 429);
            equal(last.headers().firstValue("retry-after").get().matches("3[0-6]\\d\\d"), true);
            equal(last.headers().firstValue("content-type").get().startsWith("application/problem+json"), true);
            equal(last.body().contains("rate_limit_exceeded"), true);
        });
        for (String path : List.of("/", "/async")) {
            test("lease is returned after the response of " + path, () -> {
                String tenant = fresh();
                equal(get(web + path, "x-tenant", tenant).body(), "hello");
                int tries = 0;
                while (!client.check(Map.of("tenant", tenant)).allowed()) {
                    equal(tries++ < 2000, true);
                    Thread.sleep(10);
                }
            });
        }
        test("failure policy decides", () -> {
            for (OnFailure policy : OnFailure.values()) {
                Client gone = ClientTests.to(Servers.nobody()).onFailure(policy).onError(error -> {}).build();
                int status = get(tomcat(new RateLimitFilter(gone)), "x-user", "x").statusCode();
                equal(status, policy == OnFailure.OPEN ? 200 : policy == OnFailure.CLOSED ? 503 : 500);
            }
        });
        test("path that cannot be checked is a bad request", () ->
                equal(get(web + "/" + "x".repeat(5000), "x-user", "x").statusCode(), 400));
        test("method, path and address are sent by default", () -> {
            String byDefault = tomcat(new RateLimitFilter(client)) + "/by-ip/x?query";
            equal(List.of(get(byDefault, "a", "b").statusCode(), get(byDefault, "a", "b").statusCode(),
                    get(byDefault, "a", "b").statusCode()), List.of(200, 200, 429));
        });
        test("IPv6 is counted by network, and IPv4 never as IPv6", () -> {
            Map<String, String> counted = Map.of("203.0.113.7", "203.0.113.7", "::ffff:203.0.113.7", "203.0.113.7",
                    "2001:db8:1:2:3::4", "2001:db8:1:2::/64", "fe80::1%eth0", "fe80::/64");
            counted.forEach((address, wanted) -> equal(RateLimitFilter.clientIp(address), wanted));
        });
    }

    private static Map<String, String> byHeaders(HttpServletRequest request) {
        Map<String, String> attributes = new HashMap<>(Map.of("path", request.getRequestURI()));
        for (String name : List.of("user", "tenant")) {
            if (request.getHeader("x-" + name) != null) {
                attributes.put(name, request.getHeader("x-" + name));
            }
        }
        return attributes;
    }

    private static HttpResponse<String> get(String url, String header, String value) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url)).header(header, value).build();
        return HTTP.send(request, HttpResponse.BodyHandlers.ofString());
    }

    /** A Tomcat that says hello behind the filter. It ends with the tests. */
    private static String tomcat(RateLimitFilter filter) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(Servers.folder().toString());
        tomcat.setPort(0);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        Context context = tomcat.addContext("", null);
        FilterDef definition = new FilterDef();
        definition.setFilterName("limit");
        definition.setFilter(filter);
        definition.setAsyncSupported("true");
        context.addFilterDef(definition);
        FilterMap map = new FilterMap();
        map.setFilterName("limit");
        map.addURLPattern("/*");
        context.addFilterMap(map);
        Wrapper servlet = Tomcat.addServlet(context, "hello", new Hello());
        servlet.setAsyncSupported(true);
        servlet.addMapping("/");
        tomcat.start();
        return "http://127.0.0.1:" + tomcat.getConnector().getLocalPort();
    }

    private static final class Hello extends HttpServlet {
        private static final long serialVersionUID = 1L;

        @Override
        protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
            if (!request.getRequestURI().equals("/async")) {
                response.getWriter().write("hello");
                return;
            }
            AsyncContext later = request.startAsync();
            later.start(() -> {
                try {
                    later.getResponse().getWriter().write("hello");
                } catch (IOException error) {
                    throw new java.io.UncheckedIOException(error);
                } finally {
                    later.complete();
                }
            });
        }
    }
}
