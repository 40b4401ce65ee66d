package tidegate

import (
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// RequestAttributes are method, path and the address of the connection. Behind a proxy, describe requests by a function of your own
// that reads its header.
func RequestAttributes(r *http.Request) Attributes {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return Attributes{"method": r.Method, "path": r.URL.Path, "ip": ClientIP(host)}
}

// ClientIP is an address as tidegate's own front ends count it: of IPv6 the /64, of which one household has billions; IPv4 never as
// IPv6.
func ClientIP(address string) string {
	parsed, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	parsed = parsed.Unmap().WithZone("")
	if parsed.Is4() {
		return parsed.String()
	}
	return netip.PrefixFrom(parsed, 64).Masked().String()
}

// Middleware asks before each request, sends the headers on, and holds leases until the response is sent. describe may be nil, for
// RequestAttributes; where it returns nil, the request passes unasked.
func (c *Client) Middleware(describe func(*http.Request) Attributes) func(http.Handler) http.Handler {
	if describe == nil {
		describe = RequestAttributes
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			attributes := describe(r)
			if attributes == nil {
				next.ServeHTTP(w, r)
				return
			}
			decision, err := c.Check(r.Context(), attributes)
			if err != nil {
				c.fail(w, err)
				return
			}
			for name, values := range decision.Header {
				w.Header()[name] = values
			}
			if !decision.Allowed {
				refuse(w, decision)
				return
			}
			defer c.releaseQuietly(r.Context(), decision.Lease)
			if sleep(r.Context(), decision.Delay) == nil {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// fail answers where there is no decision: 400 where the caller's own words cannot be checked, such as a path of 5 KB.
func (c *Client) fail(w http.ResponseWriter, err error) {
	status, title, word := http.StatusInternalServerError, "The limit cannot be checked", "internal_error"
	var invalid *InvalidRequest
	if errors.As(err, &invalid) && strings.HasPrefix(invalid.Field, "attributes") {
		status, title, word = http.StatusBadRequest, "The request is not valid", "malformed_request"
	} else {
		// The service's own mistake: the caller need not know it.
		c.report(err)
	}
	write(w, status, map[string]any{"title": title, "status": status, "error": word})
}

func refuse(w http.ResponseWriter, decision Decision) {
	kind, title, word := "https://iana.org/assignments/http-problem-types#quota-exceeded", "The quota is exceeded", "rate_limit_exceeded"
	if decision.Status == http.StatusServiceUnavailable {
		kind, title, word = "urn:tidegate:problem:store-unavailable", "The limit cannot be checked now", "store_unavailable"
	}
	if w.Header().Get("Retry-After") == "" && decision.RetryAfter != Never {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(decision.RetryAfter.Seconds()))))
	}
	write(w, decision.Status, map[string]any{
		"type": kind, "title": title, "status": decision.Status, "error": word, "message": decision.Message,
	})
}

func write(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
