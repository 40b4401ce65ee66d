package tidegate

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// web is a real HTTP server that says hello behind the middleware.
func web(t *testing.T, client *Client, describe func(*http.Request) Attributes) string {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	server := httptest.NewServer(client.Middleware(describe)(hello))
	t.Cleanup(server.Close)
	return server.URL
}

func byHeaders(r *http.Request) Attributes {
	attributes := Attributes{"path": r.URL.Path}
	for _, name := range []string{"user", "tenant"} {
		if value := r.Header.Get("X-" + name); value != "" {
			attributes[name] = value
		}
	}
	return attributes
}

func get(t *testing.T, url, header, value string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(header, value)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestMiddleware(t *testing.T) {
	client := dial(t, serve(t, ""), Options{})
	url := web(t, client, byHeaders)

	t.Run("three pass with headers and the fourth is refused", func(t *testing.T) {
		user := fresh()
		first, body := get(t, url, "X-User", user)
		equal(t, words(first.StatusCode, body, first.Header.Get("X-RateLimit-Remaining")), "200 hello 2")
		get(t, url, "X-User", user)
		get(t, url, "X-User", user)
		last, body := get(t, url, "X-User", user)
		equal(t, words(last.StatusCode, len(last.Header.Get("Retry-After")), last.Header.Get("Content-Type")), "429 4 application/problem+json")
		if !strings.Contains(body, "rate_limit_exceeded") {
			t.Error(body)
		}
	})
	t.Run("lease is returned after the response", func(t *testing.T) {
		tenant := fresh()
		get(t, url, "X-Tenant", tenant)
		for tries := 0; !check(t, client, Attributes{"tenant": tenant}).Allowed; tries++ {
			if tries == 2000 {
				t.Fatal("the slot was never returned")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	t.Run("failure policy decides", func(t *testing.T) {
		for policy, status := range map[Policy]int{Fail: 500, Open: 200, Closed: 503} {
			gone := dial(t, nobody(t), Options{OnFailure: policy, OnError: func(error) {}})
			answer, _ := get(t, web(t, gone, byHeaders), "X-User", "x")
			equal(t, answer.StatusCode, status)
		}
	})
	t.Run("path that cannot be checked is a bad request", func(t *testing.T) {
		answer, _ := get(t, url+"/"+strings.Repeat("x", 5000), "X-User", "x")
		equal(t, answer.StatusCode, 400)
	})
	t.Run("method path and address are sent by default", func(t *testing.T) {
		byDefault := web(t, client, nil)
		var statuses []int
		for range 3 {
			answer, _ := get(t, byDefault+"/by-ip/x?query", "X-User", "x")
			statuses = append(statuses, answer.StatusCode)
		}
		equal(t, words(statuses), "[200 200 429]")
	})
}

func TestAddressesAreCountedByNetwork(t *testing.T) {
	for address, want := range map[string]string{
		"203.0.113.7": "203.0.113.7", "::ffff:203.0.113.7": "203.0.113.7", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64",
	} {
		equal(t, ClientIP(address), want)
	}
}
