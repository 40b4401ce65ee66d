package tidegate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	ctx   = context.Background()
	count atomic.Int64
)

func fresh() string { return fmt.Sprintf("caller-%d", count.Add(1)) }

func dial(t testing.TB, url string, options Options) *Client {
	t.Helper()
	options.Domain = "clients"
	if options.Deadline == 0 {
		options.Deadline = patient
	}
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	client, err := New(url, options)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func check(t testing.TB, client *Client, attributes Attributes, options ...Option) Decision {
	t.Helper()
	decision, err := client.Check(ctx, attributes, options...)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

func equal[T comparable](t testing.TB, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestQuestions(t *testing.T) {
	client := dial(t, serve(t, ""), Options{})

	t.Run("limit passes three and refuses the fourth with headers", func(t *testing.T) {
		user := Attributes{"user": fresh()}
		first := check(t, client, user)
		equal(t, words(first.Allowed, first.Status, first.Rule, first.Limit, first.Remaining, first.Source), "true 200 per-user 3 2 store")
		equal(t, first.Header.Get("X-RateLimit-Remaining"), "2")
		equal(t, first.Header.Get("Content-Type"), "")
		equal(t, first.RetryAfter, Never)
		check(t, client, user)
		check(t, client, user)
		last := check(t, client, user)
		equal(t, words(last.Allowed, last.Status), "false 429")
		equal(t, regexp.MustCompile(`^3[0-6]\d\d$`).MatchString(last.Header.Get("Retry-After")), true)
		if last.RetryAfter < 3000*time.Second || last.RetryAfter > time.Hour {
			t.Error(last.RetryAfter)
		}
	})
	t.Run("cost 0 looks without spending", func(t *testing.T) {
		user := Attributes{"user": fresh()}
		check(t, client, user, Cost(0))
		equal(t, check(t, client, user, Cost(0)).Remaining, 3)
	})
	t.Run("no rule is allowed by none", func(t *testing.T) {
		decision := check(t, client, nil)
		equal(t, words(decision.Allowed, decision.Source, len(decision.Header)), "true none 0")
	})
	t.Run("batch answers in order", func(t *testing.T) {
		user := Attributes{"user": fresh()}
		decisions, err := client.Batch(ctx, []Request{{user, nil}, {user, []Option{Cost(3)}}, {user, []Option{Cost(2)}}})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, words(decisions[0].Status, decisions[1].Status, decisions[2].Status), "200 429 200")
	})
	t.Run("refund returns hits to the window that was charged", func(t *testing.T) {
		user := Attributes{"user": fresh()}
		spent := check(t, client, user, Cost(3)).Spent
		if err := client.Refund(ctx, user, 2, Spent(spent)); err != nil {
			t.Fatal(err)
		}
		equal(t, check(t, client, user, Cost(0)).Remaining, 2)
	})
	t.Run("charge may leave a debt", func(t *testing.T) {
		model := Attributes{"model": fresh()}
		if _, err := client.Charge(ctx, model, 500); err != nil {
			t.Fatal(err)
		}
		equal(t, check(t, client, model).Allowed, false)
	})
	t.Run("request id is charged once", func(t *testing.T) {
		user := Attributes{"user": fresh()}
		check(t, client, user, RequestID("r-1"))
		equal(t, check(t, client, user, RequestID("r-1")).Remaining, 2)
	})
	t.Run("lease holds the only slot and returns it after a cancelled context too", func(t *testing.T) {
		tenant := Attributes{"tenant": fresh()}
		ended, cancel := context.WithCancel(ctx)
		err := client.WithLease(ended, tenant, func(context.Context, Decision) error {
			cancel()
			var refused *RateLimited
			if err := client.WithLease(ctx, tenant, nil); !errors.As(err, &refused) || refused.Decision.Rule != "uploads" {
				t.Error(err)
			}
			return errors.New("work failed")
		})
		equal(t, err.Error(), "work failed")
		equal(t, check(t, client, tenant).Allowed, true)
	})
	t.Run("lease that has ended cannot be renewed", func(t *testing.T) {
		lease := check(t, client, Attributes{"tenant": fresh()}).Lease
		if err := errors.Join(client.Renew(ctx, lease), client.Release(ctx, lease)); err != nil {
			t.Fatal(err)
		}
		var ended *LeaseEnded
		if err := client.Renew(ctx, lease); !errors.As(err, &ended) {
			t.Error(err)
		}
	})
	t.Run("acquire waits as the server says and gives up at once if that takes too long", func(t *testing.T) {
		caller := Attributes{"refilled": fresh()}
		for range 3 {
			if _, err := client.Acquire(ctx, caller, patient); err != nil {
				t.Fatal(err)
			}
		}
		user := Attributes{"user": fresh()}
		check(t, client, user, Cost(3))
		var refused *RateLimited
		if _, err := client.Acquire(ctx, user, time.Minute); !errors.As(err, &refused) {
			t.Error(err)
		}
	})
	t.Run("usage shows what is left", func(t *testing.T) {
		user := Attributes{"user": fresh()}
		check(t, client, user)
		usage, err := client.Usage(ctx, user)
		if err != nil || !strings.Contains(string(usage), `"remaining":2`) {
			t.Error(string(usage), err)
		}
	})
	t.Run("mistake names its field whatever the policy", func(t *testing.T) {
		open := dial(t, strings.TrimPrefix(client.base, "http://"), Options{OnFailure: Open})
		var invalid *InvalidRequest
		_, err := open.Check(ctx, nil, InDomain("nowhere"))
		if !errors.As(err, &invalid) || invalid.Field != "domain" || invalid.Status != 422 || !strings.Contains(err.Error(), "clients") {
			t.Error(err)
		}
	})
	t.Run("context of the caller ends a call", func(t *testing.T) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := client.Check(ended, nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestWrongSettingsAreErrorsAtOnce(t *testing.T) {
	for _, url := range []string{"127.0.0.1:8080", "ftp://x", "http://", "http://x:port", "http://user:secret@x"} {
		if _, err := New(url, Options{Domain: "x"}); err == nil {
			t.Error(url)
		}
	}
	for _, options := range []Options{{}, {Domain: "x", Retries: -1}, {Domain: "x", OnFailure: 9}, {Domain: "x", Token: "a\nb"}} {
		if _, err := New("http://x", options); err == nil {
			t.Error(options)
		}
	}
}

// unavailable wants an error for one of these reasons.
func unavailable(t testing.TB, client *Client, reasons ...string) {
	t.Helper()
	_, err := client.Check(ctx, Attributes{"user": "x"})
	var failed *Unavailable
	if !errors.As(err, &failed) || !slices.Contains(reasons, failed.Reason) {
		t.Errorf("%v (%+v)", err, failed)
	}
}

// inTime wants the same within the deadline and half of it again. A machine that stands still for a moment may be late, but not three
// times.
func inTime(t testing.TB, client *Client, reasons ...string) {
	t.Helper()
	var took []time.Duration
	for len(took) < 3 {
		begun := time.Now()
		unavailable(t, client, reasons...)
		took = append(took, time.Since(begun))
		if took[len(took)-1] < client.options.Deadline*3/2 {
			return
		}
	}
	t.Error(took, "three times in a row")
}

func TestFailures(t *testing.T) {
	t.Run("host that does not exist", func(t *testing.T) {
		inTime(t, dial(t, "http://no-such-host.invalid:8080", Options{Deadline: time.Second}), "unreachable", "timeout")
	})
	t.Run("server that is down", func(t *testing.T) {
		unavailable(t, dial(t, nobody(t), Options{}), "unreachable")
	})
	for _, says := range []string{"", "HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n{"} {
		t.Run("server that never answers or ends", func(t *testing.T) {
			inTime(t, dial(t, listen(t, says).url, Options{Deadline: 300 * time.Millisecond}), "timeout")
		})
	}
	for _, says := range []string{"220 mail.example ready\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"} {
		t.Run("something else that speaks", func(t *testing.T) {
			unavailable(t, dial(t, listen(t, says).url, Options{}), "protocol")
		})
	}
	t.Run("policy decides", func(t *testing.T) {
		url, errs := nobody(t), 0
		onError := func(error) { errs++ }
		passed := check(t, dial(t, url, Options{OnFailure: Open, OnError: onError}), nil)
		refused := check(t, dial(t, url, Options{OnFailure: Closed, OnError: onError}), nil)
		equal(t, words(passed.Allowed, passed.Source), "true client_open")
		equal(t, words(refused.Allowed, refused.Source, refused.Status), "false client_closed 503")
		equal(t, errs, 2)
	})
	t.Run("retries carry one request id", func(t *testing.T) {
		peer := listen(t, "")
		unavailable(t, dial(t, peer.url, Options{Deadline: time.Second, Retries: 2}), "timeout")
		unavailable(t, dial(t, peer.url, Options{Deadline: 300 * time.Millisecond}), "timeout")
		peer.mutex.Lock()
		defer peer.mutex.Unlock()
		ids := map[string]int{}
		for _, request := range peer.received {
			ids[regexp.MustCompile(`"request_id":"[^"]+"`).FindString(request)]++
		}
		delete(ids, "")
		if len(ids) != 1 || len(peer.received) != 4 {
			t.Error(ids, len(peer.received))
		}
	})
}

func TestTokenIsSentAndAWrongOneIsNamed(t *testing.T) {
	url := serve(t, "access: { tokens: ['"+testToken+"'] }\n")
	if err := dial(t, url, Options{Token: testToken}).Ping(ctx); err != nil {
		t.Error(err)
	}
	for _, token := range []string{"", "another-token-of-the-tests"} {
		var refused *Unauthorized
		if err := dial(t, url, Options{Token: token}).Ping(ctx); !errors.As(err, &refused) || !strings.Contains(err.Error(), "access.tokens") {
			t.Error(err)
		}
	}
	equal(t, check(t, dial(t, url, Options{OnFailure: Open, OnError: func(error) {}}), nil).Allowed, true)
}

func TestCertificateOfAnotherIsAnError(t *testing.T) {
	dir := t.TempDir()
	cert := certificate(t, dir, "server")
	another := certificate(t, dir, "another")
	url := "https://" + serve(t, fmt.Sprintf("tls: { http: { certificate: '%s/server.pem', key: '%s/server.key' } }\n", dir, dir))
	trusting := func(cert *x509.Certificate) Options {
		pool := x509.NewCertPool()
		pool.AddCert(cert)
		return Options{HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}}
	}
	if err := dial(t, url, trusting(cert)).Ping(ctx); err != nil {
		t.Error(err)
	}
	unavailable(t, dial(t, url, trusting(another)), "tls")
	unavailable(t, dial(t, url, Options{}), "tls")
}

func certificate(t testing.TB, dir, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for ending, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name+ending), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func words(values ...any) string { return strings.TrimSpace(fmt.Sprintln(values...)) }
