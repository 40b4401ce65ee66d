// Package tidegate asks tidegate, a distributed rate limiter, over HTTP.
//
//	client, err := tidegate.New("http://127.0.0.1:8080", tidegate.Options{Domain: "api", OnFailure: tidegate.Open})
//	decision, err := client.Check(ctx, tidegate.Attributes{"user": "42"})
package tidegate

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Attributes describe a request to the rules.
type Attributes map[string]string

// Policy is what holds without an answer in time.
type Policy int

const (
	// Fail returns the error; the default.
	Fail Policy = iota
	// Open lets pass.
	Open
	// Closed refuses, with status 503.
	Closed
)

func (p Policy) String() string { return [...]string{"with an error", "open", "closed"}[p] }

// Options of a client. Only Domain is required.
type Options struct {
	// Domain is whose rules apply, unless a call names another.
	Domain string
	// Token is one of the server's access.tokens.
	Token string
	// Deadline is how long a call may take, retries included: 250 ms by default. A context may end it earlier.
	Deadline  time.Duration
	OnFailure Policy
	// Retries is how often to ask again, within the deadline. Checks then carry a request id, so none is charged twice.
	Retries int
	// HTTPClient is another client, with certificates or a pool of your own. Its Timeout is not used.
	HTTPClient *http.Client
	// OnError gets each error that the failure policy hides; by default one warning in ten seconds is logged.
	OnError func(error)
}

// Client asks a server, on connections that are kept. Goroutines may share one.
type Client struct {
	base    string
	options Options
	http    *http.Client
	warned  atomic.Int64
}

const (
	quiet   = 10 * time.Second
	maxBody = 32 << 20
)

// New makes a client for a URL such as http://127.0.0.1:8080. It does not connect; Ping does.
func New(address string, options Options) (*Client, error) {
	const hint = "expected a URL such as http://127.0.0.1:8080"
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("tidegate: %w; %s", err, hint)
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "" {
		return nil, fmt.Errorf("tidegate: %q is not an address; %s", address, hint)
	}
	if parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		return nil, fmt.Errorf("tidegate: %s: more than an address; %s, and the token apart", parsed.Host, hint)
	}
	switch {
	case options.Domain == "":
		return nil, errors.New("tidegate: Options.Domain is empty")
	case options.Deadline < 0 || options.Retries < 0:
		return nil, errors.New("tidegate: Options.Deadline and Retries must not be negative")
	case options.OnFailure < Fail || options.OnFailure > Closed:
		return nil, errors.New("tidegate: Options.OnFailure must be Fail, Open or Closed")
	case strings.ContainsFunc(options.Token, func(r rune) bool { return r < '!' || r > '~' }):
		return nil, errors.New("tidegate: Options.Token has characters that a header cannot hold")
	}
	if options.Deadline == 0 {
		options.Deadline = 250 * time.Millisecond
	}
	client := &Client{base: strings.TrimRight(parsed.String(), "/"), options: options, http: options.HTTPClient}
	if client.http == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		// Two are kept by default, so that busy programs would connect anew all the time.
		transport.MaxIdleConnsPerHost = 64
		client.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	}
	client.warned.Store(time.Now().Add(-quiet).UnixNano())
	return client, nil
}

// Option of one call.
type Option func(*question)

// Cost is how many hits to spend: 1 by default; 0 looks without spending.
func Cost(hits uint64) Option { return func(q *question) { q.Cost = &hits } }

// InDomain names another domain than the client's.
func InDomain(domain string) Option { return func(q *question) { q.Domain = domain } }

// RequestID makes a retry within a minute get the first answer.
func RequestID(id string) Option { return func(q *question) { q.RequestID = id } }

// Spent gives a refund to the window that was charged: Decision.Spent.
func Spent(token string) Option { return func(q *question) { q.Spent = token } }

type question struct {
	Domain     string     `json:"domain"`
	Attributes Attributes `json:"attributes"`
	Cost       *uint64    `json:"cost,omitempty"`
	Amount     *uint64    `json:"amount,omitempty"`
	Spent      string     `json:"spent,omitempty"`
	RequestID  string     `json:"request_id,omitempty"`
}

func (c *Client) question(attributes Attributes, options []Option) question {
	if attributes == nil {
		attributes = Attributes{}
	}
	q := question{Domain: c.options.Domain, Attributes: attributes}
	for _, option := range options {
		option(&q)
	}
	if q.RequestID == "" && c.options.Retries > 0 {
		q.RequestID = newID()
	}
	return q
}

func newID() string {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic("tidegate: the operating system gives no random bytes: " + err.Error())
	}
	return fmt.Sprintf("%x", random)
}

// Check decides one request, and spends its cost if it passes.
func (c *Client) Check(ctx context.Context, attributes Attributes, options ...Option) (Decision, error) {
	q := c.question(attributes, options)
	status, header, body, err := c.ask(ctx, "/v1/check", q, q.RequestID != "")
	if err == nil && body.Allowed == nil {
		err = strange("no decision")
	}
	if err == nil {
		return body.decision(status, header), nil
	}
	if !c.hides(err) {
		return Decision{}, err
	}
	return ofFailure(c.options.OnFailure, err), nil
}

// Request is one check of a batch.
type Request struct {
	Attributes Attributes
	Options    []Option
}

// Batch decides several requests in one call, each on its own.
func (c *Client) Batch(ctx context.Context, requests []Request) ([]Decision, error) {
	questions := make([]question, len(requests))
	repeatable := true
	for i, request := range requests {
		questions[i] = c.question(request.Attributes, request.Options)
		repeatable = repeatable && questions[i].RequestID != ""
	}
	payload := map[string]any{"checks": questions}
	_, _, body, err := c.ask(ctx, "/v1/check/batch", payload, repeatable)
	if err == nil && len(body.Decisions) != len(requests) {
		err = strange("other decisions")
	}
	decisions := make([]Decision, len(requests))
	if err != nil {
		if !c.hides(err) {
			return nil, err
		}
		for i := range decisions {
			decisions[i] = ofFailure(c.options.OnFailure, err)
		}
		return decisions, nil
	}
	for i := range body.Decisions {
		one := &body.Decisions[i]
		status := http.StatusTooManyRequests
		switch {
		case one.Allowed == nil:
			return nil, strange("no decision")
		case *one.Allowed:
			status = http.StatusOK
		case one.Error == "store_unavailable":
			status = http.StatusServiceUnavailable
		}
		decisions[i] = one.decision(status, nil)
	}
	return decisions, nil
}

// Charge spends an amount that is known only afterwards, such as tokens of an answer. Rules with `over: debt` spend it even where
// less is left; others refuse, and spend nothing.
func (c *Client) Charge(ctx context.Context, attributes Attributes, amount uint64, options ...Option) (Decision, error) {
	return c.Check(ctx, attributes, append(options, Cost(amount))...)
}

// Refund gives hits back.
func (c *Client) Refund(ctx context.Context, attributes Attributes, amount uint64, options ...Option) error {
	q := c.question(attributes, options)
	q.Cost, q.Amount = nil, &amount
	// Hits that are not given back stay spent, which is the safe side: neither policy needs to stop the caller.
	return c.quietly(c.tell(ctx, "/v1/refund", q, q.RequestID != ""))
}

// Usage tells what is left under every rule that matches, as JSON; it spends nothing.
func (c *Client) Usage(ctx context.Context, attributes Attributes, options ...Option) (json.RawMessage, error) {
	q := c.question(attributes, options)
	q.RequestID = ""
	_, _, raw, err := c.exchange(ctx, "/v1/usage", q, true)
	return raw, err
}

// Release ends a lease. Twice does no harm.
func (c *Client) Release(ctx context.Context, lease string) error {
	return c.quietly(c.tell(ctx, "/v1/release", map[string]string{"lease": lease}, true))
}

// Renew gives a lease another time to live; the error is a LeaseEnded where it is over.
func (c *Client) Renew(ctx context.Context, lease string) error {
	return c.quietly(c.tell(ctx, "/v1/renew", map[string]string{"lease": lease}, true))
}

// Ping returns an error unless the server can be reached, shows the right certificate and takes the token.
func (c *Client) Ping(ctx context.Context) error {
	// Not /healthz: that needs no token, so it would not find a wrong one.
	return c.tell(ctx, "/openapi.json", nil, true)
}

// WithLease holds a concurrency slot while work runs; the error is a RateLimited where none is free.
func (c *Client) WithLease(ctx context.Context, attributes Attributes, work func(context.Context, Decision) error, options ...Option) error {
	decision, err := c.Check(ctx, attributes, options...)
	if err != nil {
		return err
	}
	if !decision.Allowed {
		return &RateLimited{decision}
	}
	defer c.releaseQuietly(ctx, decision.Lease)
	return work(ctx, decision)
}

// releaseQuietly also works where ctx has ended. An error is reported: the lease ends with its time to live.
func (c *Client) releaseQuietly(ctx context.Context, lease string) {
	if lease == "" {
		return
	}
	if err := c.tell(context.WithoutCancel(ctx), "/v1/release", map[string]string{"lease": lease}, true); err != nil {
		c.report(err)
	}
}

// Acquire checks until allowed, waiting as the server says and a little longer, at most wait in all; the error is a RateLimited
// where that would take longer.
func (c *Client) Acquire(ctx context.Context, attributes Attributes, wait time.Duration, options ...Option) (Decision, error) {
	until := time.Now().Add(wait)
	for {
		decision, err := c.Check(ctx, attributes, options...)
		if err != nil {
			return decision, err
		}
		if decision.Allowed {
			return decision, sleep(ctx, decision.Delay)
		}
		pause := decision.RetryAfter + time.Duration(float64(decision.RetryAfter)*0.1*mathrand.Float64()) +
			time.Duration(float64(10*time.Millisecond)*mathrand.Float64())
		if decision.RetryAfter == Never || time.Now().Add(pause).After(until) {
			return decision, &RateLimited{decision}
		}
		if err := sleep(ctx, pause); err != nil {
			return decision, err
		}
	}
}

func sleep(ctx context.Context, pause time.Duration) error {
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hides says whether the failure policy answers in place of this error, and reports it if so.
func (c *Client) hides(err error) bool {
	var unavailable *Unavailable
	var unauthorized *Unauthorized
	if c.options.OnFailure == Fail || !errors.As(err, &unavailable) && !errors.As(err, &unauthorized) {
		return false
	}
	c.report(err)
	return true
}

func (c *Client) quietly(err error) error {
	if err != nil && c.hides(err) {
		return nil
	}
	return err
}

func (c *Client) report(err error) {
	if c.options.OnError != nil {
		c.options.OnError(err)
		return
	}
	now, last := time.Now().UnixNano(), c.warned.Load()
	if now-last >= int64(quiet) && c.warned.CompareAndSwap(last, now) {
		slog.Warn("tidegate: fails "+c.options.OnFailure.String(), "error", err)
	}
}

func (c *Client) tell(ctx context.Context, path string, payload any, repeatable bool) error {
	_, _, _, err := c.ask(ctx, path, payload, repeatable)
	return err
}

func (c *Client) ask(ctx context.Context, path string, payload any, repeatable bool) (int, http.Header, answer, error) {
	status, header, raw, err := c.exchange(ctx, path, payload, repeatable)
	var body answer
	if err == nil && payload != nil {
		if json.Unmarshal(raw, &body) != nil {
			err = strange("other JSON")
		}
	}
	return status, header, body, err
}

// exchange asks until there is an answer, or no time or try is left.
func (c *Client) exchange(ctx context.Context, path string, payload any, repeatable bool) (int, http.Header, []byte, error) {
	var data []byte
	if payload != nil {
		var err error
		if data, err = json.Marshal(payload); err != nil {
			return 0, nil, nil, err
		}
	}
	until := time.Now().Add(c.options.Deadline)
	tries := 1
	if repeatable {
		tries += c.options.Retries
	}
	for {
		// Each try gets an equal part of what is left, or the first would use it all.
		part := time.Until(until) / time.Duration(tries)
		status, header, raw, err := c.once(ctx, path, data, part)
		tries--
		var unavailable *Unavailable
		if !errors.As(err, &unavailable) || tries == 0 || !time.Now().Before(until) || ctx.Err() != nil {
			return status, header, raw, err
		}
		pause := time.Duration(mathrand.Int64N(int64(20 * time.Millisecond)))
		if sleep(ctx, min(pause, max(0, time.Until(until)))) != nil {
			return status, header, raw, err
		}
	}
}

func (c *Client) once(ctx context.Context, path string, data []byte, within time.Duration) (int, http.Header, []byte, error) {
	within = max(within, time.Millisecond)
	timed, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	method := http.MethodGet
	if data != nil {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(timed, method, c.base+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, nil, err
	}
	request.Header.Set("Accept", "application/json")
	if data != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.Token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, nil, c.explain(ctx, err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return 0, nil, nil, c.explain(ctx, err)
	}
	return response.StatusCode, response.Header, raw, problem(response.StatusCode, raw)
}

// problem is what an answer means that is none.
func problem(status int, raw []byte) error {
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		return &Unauthorized{status}
	}
	var body answer
	if json.Unmarshal(raw, &body) != nil {
		return strange(fmt.Sprintf("status %d without JSON", status))
	}
	if status == http.StatusOK || body.Allowed != nil {
		return nil
	}
	detail := body.Detail
	if detail == "" {
		detail = fmt.Sprintf("status %d", status)
	}
	switch {
	case status == http.StatusGone:
		return &LeaseEnded{detail}
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusTooManyRequests:
		return &Unavailable{"server", fmt.Sprintf("the server answered %d: %s", status, detail), nil}
	default:
		return &InvalidRequest{status, detail, body.Field, body.Hint}
	}
}

func strange(what string) error {
	return &Unavailable{"protocol", "the server's answer has " + what + ": is it tidegate's HTTP listener?", nil}
}

// explain puts an error of the network into words of ours. One that the caller's context made is returned as it is.
func (c *Client) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var certificate *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	text := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Unavailable{"timeout", fmt.Sprintf("%s did not answer within %s", c.base, c.options.Deadline), err}
	case errors.As(err, &certificate), errors.As(err, &plain), strings.Contains(text, "tls: "):
		const hint = "HTTPClient names the authority that signed its certificate"
		return &Unavailable{"tls", fmt.Sprintf("cannot trust %s: %s; %s", c.base, text, hint), err}
	case strings.Contains(text, "malformed HTTP"), strings.Contains(text, "EOF"):
		return &Unavailable{"protocol", fmt.Sprintf("%s sent something that is not HTTP: %s", c.base, text), err}
	default:
		return &Unavailable{"unreachable", fmt.Sprintf("cannot reach %s: %s", c.base, text), err}
	}
}
