package tidegate

import (
	"net/http"
	"time"
)

// Never stands for a time that is not known, or will not come.
const Never = time.Duration(-1)

// Decision says whether a request may pass, and how near its limit is.
type Decision struct {
	Allowed bool
	// Status is 200, 429, or 503 where a rule must not decide without its store.
	Status int
	// Source is who decided, such as "store"; "client_open" or "client_closed" where the failure policy did.
	Source string
	// Rule is empty where no rule matched; Limit and Remaining are then 0.
	Rule             string
	Limit, Remaining uint64
	// ResetAfter is until the full quota is back, or Never.
	ResetAfter time.Duration
	// RetryAfter is until the same request would pass; Never if it passed, or never will.
	RetryAfter time.Duration
	// Delay is how long to wait before going on, where a leaky bucket says so.
	Delay time.Duration
	Lease string
	// Spent is when hits were spent: give it to Refund.
	Spent string
	// Header has the rate limit headers for the caller. A batch has none.
	Header  http.Header
	Message string
	// Err is why the failure policy decided.
	Err error
}

// passedOn are the headers of an answer that belong to the caller of the service.
var passedOn = []string{
	"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit-Policy", "Ratelimit", "Retry-After",
}

// answer is the body of a decision, or of a problem.
type answer struct {
	Allowed      *bool    `json:"allowed"`
	Source       string   `json:"source"`
	Rule         string   `json:"rule"`
	Limit        uint64   `json:"limit"`
	Remaining    uint64   `json:"remaining"`
	ResetAfterMs *float64 `json:"reset_after_ms"`
	RetryAfterMs *float64 `json:"retry_after_ms"`
	DelayMs      float64  `json:"delay_ms"`
	Lease        string   `json:"lease"`
	Spent        string   `json:"spent"`
	Error        string   `json:"error"`
	Message      string   `json:"message"`
	Detail       string   `json:"detail"`
	Field        string   `json:"field"`
	Hint         string   `json:"hint"`
	Decisions    []answer `json:"decisions"`
}

func millis(ms *float64) time.Duration {
	if ms == nil {
		return Never
	}
	return time.Duration(*ms * float64(time.Millisecond))
}

func (a *answer) decision(status int, header http.Header) Decision {
	kept := http.Header{}
	for _, name := range passedOn {
		if values := header.Values(name); len(values) > 0 {
			kept[name] = values
		}
	}
	return Decision{
		Allowed: *a.Allowed, Status: status, Source: a.Source, Rule: a.Rule, Limit: a.Limit, Remaining: a.Remaining,
		ResetAfter: millis(a.ResetAfterMs), RetryAfter: millis(a.RetryAfterMs), Delay: millis(&a.DelayMs),
		Lease: a.Lease, Spent: a.Spent, Header: kept, Message: a.Message,
	}
}

// ofFailure is what the failure policy says.
func ofFailure(policy Policy, err error) Decision {
	decision := Decision{ResetAfter: Never, RetryAfter: Never, Header: http.Header{}, Err: err}
	if policy == Open {
		decision.Allowed, decision.Status, decision.Source = true, http.StatusOK, "client_open"
		return decision
	}
	decision.Status, decision.Source = http.StatusServiceUnavailable, "client_closed"
	decision.RetryAfter = time.Second
	decision.Header.Set("Retry-After", "1")
	decision.Message = "the rate limiter cannot be asked now"
	return decision
}
