package mailappliance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	background = context.Background()
	email      = Email{From: "a@example.com", To: []string{"b@example.net"}, Subject: "Hello", Text: "Hi"}
)

const acceptedBody = `{"id":"msg_1","status":"queued","source":"api","request_id":"req_1"}`

// server answers requests in turn, the last answer again and again, and records them.
type server struct {
	*httptest.Server
	mu          sync.Mutex
	requests    []*http.Request
	bodies      []string
	connections int32
}

func serve(t *testing.T, answers ...http.HandlerFunc) *server {
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		n := len(s.requests)
		s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
		s.mu.Unlock()
		if n >= len(answers) {
			n = len(answers) - 1
		}
		answers[n](w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			atomic.AddInt32(&s.connections, 1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *server) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func answering(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// connect makes a client whose pauses take no time, and are recorded.
func connect(t *testing.T, url string, opts ...Option) (*Client, *[]time.Duration) {
	c, err := New(url, append([]Option{Basic("user", "password")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	pauses := &[]time.Duration{}
	c.pause = func(ctx context.Context, d time.Duration) error {
		*pauses = append(*pauses, d)
		return ctx.Err()
	}
	c.random = func() float64 { return 0.5 }
	return c, pauses
}

// listen answers connections one after the other with handle, on a plain socket.
func listen(t *testing.T, handle func(n int, conn net.Conn)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for n := 0; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			handle(n, conn)
			conn.Close()
		}
	}()
	return "http://" + listener.Addr().String()
}

// receive reads one request from a plain socket; false if none came.
func receive(reader *bufio.Reader) bool {
	request, err := http.ReadRequest(reader)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, request.Body)
	return err == nil
}

func reply(conn net.Conn, body string) {
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func TestVersionIsThatOfAllLibraries(t *testing.T) {
	version, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(version)) != Version {
		t.Errorf("%s, want %s", Version, version)
	}
}

func TestSendRequestAndResult(t *testing.T) {
	s := serve(t, answering(202, `{"id":"msg_1","status":"queued","source":"api","request_id":"req_1","from":"a@example.com",
		"to":["b@example.net"],"cc":[],"bcc":[],"subject":"Grüße <&>","billing_status":"on_hold","recipient_count":1,
		"credits_reserved":1,"tags":["x"],"attachments":[{"filename":"f","content_type":"t/p","size":3,"content_id":"c"}],
		"later":{"a":1}}`))
	c, _ := connect(t, s.URL+"/mail//")
	e := email
	e.Subject, e.Cc, e.Headers, e.Variables = "Grüße <&>", []string{"c@example.net"}, map[string]string{"X-A": "b"}, map[string]any{"n": 1}
	sent, err := c.Send(background, e)
	if err != nil {
		t.Fatal(err)
	}
	want := &Sent{ID: "msg_1", Status: "queued", Source: "api", RequestID: "req_1", From: "a@example.com",
		To: []string{"b@example.net"}, Cc: []string{}, Bcc: []string{}, Subject: "Grüße <&>", BillingStatus: "on_hold",
		RecipientCount: 1, CreditsReserved: 1, Tags: []string{"x"},
		Attachments: []AttachmentInfo{{Filename: "f", ContentType: "t/p", Size: 3, ContentID: "c"}}, IdempotencyKey: sent.IdempotencyKey}
	if !reflect.DeepEqual(sent, want) {
		t.Errorf("%+v, want %+v", sent, want)
	}
	if !regexp.MustCompile(`^auto_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(sent.IdempotencyKey) {
		t.Errorf("key %q", sent.IdempotencyKey)
	}
	r := s.requests[0]
	if r.Method != "POST" || r.RequestURI != "/mail/emails" {
		t.Errorf("%s %s", r.Method, r.RequestURI)
	}
	for name, value := range map[string]string{
		"Authorization": "Basic dXNlcjpwYXNzd29yZA==", "Content-Type": "application/json", "Accept": "application/json",
		"Idempotency-Key": sent.IdempotencyKey,
	} {
		if r.Header.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, r.Header.Get(name), value)
		}
	}
	if !regexp.MustCompile(`^mail-appliance-go/1\.2\.0 go/[0-9a-z.-]+$`).MatchString(r.UserAgent()) {
		t.Errorf("User-Agent %q", r.UserAgent())
	}
	const body = `{"from":"a@example.com","to":["b@example.net"],"cc":["c@example.net"],"subject":"Grüße <&>","text":"Hi",` +
		`"variables":{"n":1},"headers":{"X-A":"b"}}`
	if s.bodies[0] != body {
		t.Errorf("body %s, want %s", s.bodies[0], body)
	}
}

func TestSendReplayedWithOwnKey(t *testing.T) {
	s := serve(t, answering(202, acceptedBody, "Idempotent-Replayed", "true"))
	c, _ := connect(t, s.URL)
	sent, err := c.Send(background, email, WithIdempotencyKey("order 7 ~"))
	if err != nil || !sent.Replayed || sent.IdempotencyKey != "order 7 ~" || s.requests[0].Header.Get("Idempotency-Key") != "order 7 ~" {
		t.Errorf("%+v %v", sent, err)
	}
}

// A field of another type does not turn an accepted message into an error.
func TestSendToleratesOtherTypes(t *testing.T) {
	s := serve(t, answering(202, `{"recipient_count":"one","id":"msg_1","to":"b@example.net","status":"queued"}`))
	c, _ := connect(t, s.URL)
	sent, err := c.Send(background, email)
	if err != nil || sent.ID != "msg_1" || sent.Status != "queued" || sent.RecipientCount != 0 || sent.To != nil {
		t.Errorf("%+v %v", sent, err)
	}
}

func TestSendRetriesWithTheSameBytes(t *testing.T) {
	s := serve(t, answering(503, "busy"), answering(429, refused("rate_limited"), "Retry-After", "2"),
		answering(409, refused("idempotency_in_progress")), answering(202, acceptedBody))
	c, pauses := connect(t, s.URL)
	e := email
	e.Attachments = []Attachment{{Filename: "a.txt", Reader: strings.NewReader("once")}}
	e.Variables = map[string]any{"a": 1, "b": 2, "c": 3}
	sent, err := c.Send(background, e)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range s.requests {
		if s.bodies[i] != s.bodies[0] || r.Header.Get("Idempotency-Key") != sent.IdempotencyKey {
			t.Errorf("attempt %d differs: %s %v", i, s.bodies[i], r.Header)
		}
	}
	if want := []time.Duration{250 * time.Millisecond, 2100 * time.Millisecond, time.Second}; !reflect.DeepEqual(*pauses, want) {
		t.Errorf("pauses %v, want %v", *pauses, want)
	}
	if n := atomic.LoadInt32(&s.connections); n != 1 {
		t.Errorf("%d connections, want the first one reused", n)
	}
}

func TestRetriesEnd(t *testing.T) {
	for _, retries := range []int{0, 2} {
		s := serve(t, answering(503, refused("temporary_failure"), "Retry-After", "1"))
		c, _ := connect(t, s.URL, WithRetries(retries))
		_, err := c.Send(background, email, WithIdempotencyKey("k"))
		var e *Error
		if !errors.As(err, &e) || s.calls() != retries+1 {
			t.Fatalf("%v after %d calls, want %d", err, s.calls(), retries+1)
		}
		want := Error{Status: 503, Code: "temporary_failure", Message: "no", RequestID: "req_1", RetryAfter: time.Second, IdempotencyKey: "k"}
		if *e != want {
			t.Errorf("%+v, want %+v", *e, want)
		}
	}
}

func TestLongRetryAfterIsLeftToTheCaller(t *testing.T) {
	s := serve(t, answering(429, refused("rate_limited"), "Retry-After", "3600"))
	c, _ := connect(t, s.URL)
	_, err := c.Send(background, email)
	var e *Error
	if !errors.As(err, &e) || e.RetryAfter != time.Hour || s.calls() != 1 || !errors.Is(err, ErrRateLimited) {
		t.Errorf("%v after %d calls", err, s.calls())
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, location := range []string{"/elsewhere", "http://%zz"} {
		s := serve(t, answering(307, "moved", "Location", location))
		c, _ := connect(t, s.URL)
		_, err := c.Get(background, "msg_1")
		var e *Error
		if !errors.As(err, &e) || e.Status != 307 || e.Code != "" || s.calls() != 1 {
			t.Errorf("%v after %d calls, want one 307", err, s.calls())
		}
	}
}

func TestNoConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	c, pauses := connect(t, "http://"+listener.Addr().String())
	_, err = c.Send(background, email, WithIdempotencyKey("k"))
	var e *ConnectionError
	if !errors.As(err, &e) || e.IdempotencyKey != "k" || len(*pauses) != 3 {
		t.Errorf("%v after %d pauses, want a *ConnectionError after 3", err, len(*pauses))
	}
}

// net/http would silently repeat these requests; they count as attempts instead.
func TestKeptConnectionLost(t *testing.T) {
	calls := map[string]func(*Client) error{
		"POST": func(c *Client) error { _, err := c.Send(background, email); return err },
		"GET":  func(c *Client) error { _, err := c.Get(background, "msg_1"); return err },
	}
	for method, call := range calls {
		for retries := 0; retries <= 1; retries++ {
			var received int32
			url := listen(t, func(n int, conn net.Conn) {
				reader := bufio.NewReader(conn)
				if receive(reader) {
					atomic.AddInt32(&received, 1)
					reply(conn, acceptedBody)
				}
				if n == 0 && receive(reader) { // the second request on the first connection
					atomic.AddInt32(&received, 1)
				}
			})
			c, pauses := connect(t, url, WithRetries(retries))
			if err := call(c); err != nil {
				t.Fatal(err)
			}
			err := call(c)
			var e *ConnectionError
			if errors.As(err, &e) != (retries == 0) || len(*pauses) != retries {
				t.Errorf("%s with %d retries: %v after %d pauses", method, retries, err, len(*pauses))
			}
			if n := atomic.LoadInt32(&received); int(n) != 2+retries {
				t.Errorf("%s with %d retries: %d requests, want %d", method, retries, n, 2+retries)
			}
		}
	}
}

func TestAnswerCutShortIsRetried(t *testing.T) {
	url := listen(t, func(n int, conn net.Conn) {
		receive(bufio.NewReader(conn))
		if n == 0 {
			io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n{\"error\"")
			return
		}
		reply(conn, acceptedBody)
	})
	c, pauses := connect(t, url)
	if _, err := c.Send(background, email); err != nil || len(*pauses) != 1 {
		t.Errorf("%v after %d pauses", err, len(*pauses))
	}
}

// A GET must have no body on the wire, not even an empty one.
func TestGetHasNoBody(t *testing.T) {
	s := serve(t, answering(200, `{"id":"msg_1"}`))
	c, _ := connect(t, s.URL)
	if _, err := c.Get(background, "a/b c?ü+%"); err != nil {
		t.Fatal(err)
	}
	r := s.requests[0]
	if r.RequestURI != "/emails/a%2Fb%20c%3F%C3%BC%2B%25" {
		t.Errorf("path %s", r.RequestURI)
	}
	if r.ContentLength != 0 || len(r.TransferEncoding) != 0 || r.Header["Content-Length"] != nil ||
		r.Header["Idempotency-Key"] != nil || r.Header["Content-Type"] != nil {
		t.Errorf("length %d, encoding %v, header %v", r.ContentLength, r.TransferEncoding, r.Header)
	}
}

func TestGetResult(t *testing.T) {
	s := serve(t, answering(200, `{"id":"msg_1","status":"odd","source":"api","from":"a@example.com","subject":"Hello",
		"billing_status":"settled","recipient_count":1,"credits_reserved":1,"created_at":"2026-01-02T12:00:00.5Z","request_id":"req_1",
		"recipients":[{"id":"rcp_1","email":"b@example.net","status":"deferred","billing_status":"reserved","attempt_count":2,
		"last_smtp_code":451,"last_smtp_response":"later","delivered_at":null,"bounced_at":"2026-01-02T12:00:00+00:00"},
		{"id":"rcp_2","last_smtp_code":null,"last_smtp_response":null,"new":[]}],"new":null}`))
	c, _ := connect(t, s.URL)
	got, err := c.Get(background, "msg_1")
	if err != nil {
		t.Fatal(err)
	}
	if !got.CreatedAt.Equal(noon.Add(500*time.Millisecond)) || !got.Recipients[0].BouncedAt.Equal(noon) {
		t.Errorf("times %v, %v", got.CreatedAt, got.Recipients[0].BouncedAt)
	}
	got.CreatedAt, got.Recipients[0].BouncedAt = time.Time{}, time.Time{}
	want := &Message{ID: "msg_1", Status: "odd", Source: "api", From: "a@example.com", Subject: "Hello", BillingStatus: "settled",
		RecipientCount: 1, CreditsReserved: 1, RequestID: "req_1", Recipients: []Recipient{
			{ID: "rcp_1", Email: "b@example.net", Status: "deferred", BillingStatus: "reserved", AttemptCount: 2,
				LastSMTPCode: 451, LastSMTPResponse: "later"},
			{ID: "rcp_2"},
		}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestGetOfATimeThatCannotBeRead(t *testing.T) {
	s := serve(t, answering(200, `{"id":"msg_1","created_at":"yesterday"}`))
	c, _ := connect(t, s.URL)
	_, err := c.Get(background, "msg_1")
	var e *Error
	if !errors.As(err, &e) || e.Status != 200 {
		t.Errorf("%v, want an *Error", err)
	}
}

// An answer without end is not read to its end.
func TestLargeAnswer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		block := make([]byte, 1<<20)
		for r.Context().Err() == nil {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	c, _ := connect(t, s.URL, WithRetries(0))
	_, err := c.Get(background, "msg_1")
	var e *Error
	if !errors.As(err, &e) || e.Status != 200 {
		t.Errorf("%v, want an *Error", err)
	}
}

func TestConnectionsAreReusedAfterErrors(t *testing.T) {
	s := serve(t, answering(400, refused("invalid_request")), answering(502, strings.Repeat("<p>", 100000)),
		answering(404, refused("not_found")), answering(202, acceptedBody))
	c, _ := connect(t, s.URL)
	for _, fails := range []bool{true, true, true, false} {
		if _, err := c.Send(background, email); (err != nil) != fails {
			t.Errorf("%v, want an error: %v", err, fails)
		}
	}
	if n := atomic.LoadInt32(&s.connections); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestParallelSends(t *testing.T) {
	const parallel, rounds = 24, 4
	s := serve(t, answering(202, acceptedBody))
	c, err := New(s.URL, Token("t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	for round := 0; round < rounds; round++ {
		var group sync.WaitGroup
		for i := 0; i < parallel; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				if _, err := c.Send(background, email); err != nil {
					t.Error(err)
				}
			}()
		}
		group.Wait()
	}
	keys := map[string]bool{}
	for _, r := range s.requests {
		keys[r.Header.Get("Idempotency-Key")] = true
	}
	if len(keys) != parallel*rounds {
		t.Errorf("%d keys, want %d", len(keys), parallel*rounds)
	}
	// Two rounds' worth leaves room for connections made while others became idle.
	if n := atomic.LoadInt32(&s.connections); n > 2*parallel {
		t.Errorf("%d connections for %d sends, %d at a time", n, parallel*rounds, parallel)
	}
}

// hang answers nothing until the client is gone.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// trickle answers without end, a space at a time.
func trickle(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		io.WriteString(w, " ")
		w.(http.Flusher).Flush()
		time.Sleep(10 * time.Millisecond)
	}
}

func TestTimeoutOfAnAttempt(t *testing.T) {
	for name, slow := range map[string]http.HandlerFunc{"hang": hang, "trickle": trickle} {
		s := serve(t, slow)
		c, pauses := connect(t, s.URL, WithTimeout(100*time.Millisecond), WithRetries(1))
		_, err := c.Send(background, email)
		var e *ConnectionError
		if !errors.As(err, &e) || !errors.Is(err, os.ErrDeadlineExceeded) || len(*pauses) != 1 {
			t.Errorf("%s: %v after %d pauses, want a time-out after 1", name, err, len(*pauses))
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v looks like the end of the caller's context", name, err)
		}
	}
}

func TestContextEndsRequest(t *testing.T) {
	for name, slow := range map[string]http.HandlerFunc{"hang": hang, "trickle": trickle} {
		slow := slow
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			time.AfterFunc(20*time.Millisecond, cancel)
			slow(w, r)
		})
		c, _ := connect(t, s.URL)
		_, err := c.Send(ctx, email, WithIdempotencyKey("k"))
		var e *ContextError
		if !errors.As(err, &e) || !errors.Is(err, context.Canceled) || e.IdempotencyKey != "k" || s.calls() != 1 {
			t.Errorf("%s: %v after %d calls, want it cancelled after 1", name, err, s.calls())
		}
	}
}

func TestContextEndsPause(t *testing.T) {
	s := serve(t, answering(503, refused("service_unavailable"), "Retry-After", "30"))
	c, err := New(s.URL, Token("t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	c.pause = func(ctx context.Context, d time.Duration) error {
		time.AfterFunc(10*time.Millisecond, cancel)
		return pause(ctx, d)
	}
	start := time.Now()
	_, err = c.Send(ctx, email, WithIdempotencyKey("k"))
	var e *ContextError
	if !errors.As(err, &e) || !errors.Is(err, context.Canceled) || IdempotencyKey(err) != "k" || s.calls() != 1 {
		t.Fatalf("%v after %d calls", err, s.calls())
	}
	if !errors.Is(e.Last, ErrServiceUnavailable) || !strings.Contains(err.Error(), "service_unavailable") {
		t.Errorf("last failure %v", e.Last)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestContextEndedBefore(t *testing.T) {
	s := serve(t, answering(202, acceptedBody))
	c, _ := connect(t, s.URL)
	ctx, cancel := context.WithCancel(background)
	cancel()
	_, err := c.Send(ctx, email)
	if !errors.Is(err, context.Canceled) || s.calls() != 0 {
		t.Errorf("%v after %d calls, want none", err, s.calls())
	}
}

func TestWait(t *testing.T) {
	s := serve(t, answering(200, `{"id":"msg_1","status":"queued"}`), answering(200, `{"id":"msg_1","status":"unheard_of"}`),
		answering(200, `{"id":"msg_1","status":"partial"}`))
	c, pauses := connect(t, s.URL)
	message, err := c.Wait(background, "msg_1")
	if err != nil || message.Status != "partial" {
		t.Fatalf("%+v %v", message, err)
	}
	if want := []time.Duration{500 * time.Millisecond, 750 * time.Millisecond}; !reflect.DeepEqual(*pauses, want) {
		t.Errorf("pauses %v, want %v", *pauses, want)
	}
}

func TestWaitTimeout(t *testing.T) {
	s := serve(t, answering(200, `{"id":"msg_1","status":"queued"}`))
	c, err := New(s.URL, Token("t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	_, err = c.Wait(background, "msg_1", WithWaitTimeout(20*time.Millisecond))
	var e *WaitTimeoutError
	if !errors.As(err, &e) || e.Message.Status != "queued" || !e.Timeout() {
		t.Errorf("%v, want a *WaitTimeoutError with the message", err)
	}
}

func TestWaitEndsWithErrorsAndContext(t *testing.T) {
	s := serve(t, answering(404, refused("not_found")))
	c, _ := connect(t, s.URL)
	if _, err := c.Wait(background, "msg_1"); !errors.Is(err, ErrNotFound) || s.calls() != 1 {
		t.Errorf("%v after %d calls", err, s.calls())
	}
	ctx, cancel := context.WithCancel(background)
	s = serve(t, func(w http.ResponseWriter, r *http.Request) {
		answering(200, `{"id":"msg_1","status":"queued"}`)(w, r)
		time.AfterFunc(50*time.Millisecond, cancel)
	})
	c, err := New(s.URL, Token("t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	if _, err := c.Wait(ctx, "msg_1"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want it cancelled", err)
	}
}

func TestCertificates(t *testing.T) {
	var calls int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		atomic.AddInt32(&calls, 1)
		answering(202, acceptedBody)(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	c, pauses := connect(t, s.URL)
	_, err := c.Send(background, email)
	var e *ConnectionError
	if !errors.As(err, &e) || len(*pauses) != 0 || atomic.LoadInt32(&calls) != 0 {
		t.Errorf("%v after %d pauses, want a *ConnectionError at once", err, len(*pauses))
	}
	c, _ = connect(t, s.URL, WithHTTPClient(s.Client()))
	if _, err := c.Send(background, email); err != nil {
		t.Errorf("trusted: %v", err)
	}
	c, pauses = connect(t, strings.Replace(s.URL, "127.0.0.1", "localhost", 1), WithHTTPClient(s.Client()))
	if _, err := c.Send(background, email); !errors.As(err, &e) || len(*pauses) != 0 {
		t.Errorf("another name: %v after %d pauses, want a *ConnectionError at once", err, len(*pauses))
	}
}

func TestNew(t *testing.T) {
	const url, user, password, token = "MAIL_APPLIANCE_URL", "MAIL_APPLIANCE_USERNAME", "MAIL_APPLIANCE_PASSWORD", "MAIL_APPLIANCE_TOKEN"
	type env map[string]string
	tests := []struct {
		name          string
		env           env
		url           string
		opts          []Option
		endpoint      string
		authorization string
		wrong         []string // words of the error
	}{
		{name: "basic", url: "https://h", opts: []Option{Basic("u", "p")}, endpoint: "https://h/emails", authorization: "Basic dTpw"},
		{name: "token", url: "http://h:1/a%2Fb///", opts: []Option{Token("t")}, endpoint: "http://h:1/a%2Fb/emails", authorization: "Bearer t"},
		{name: "all from the environment", env: env{url: "http://h/", user: "u", password: "p"}, endpoint: "http://h/emails", authorization: "Basic dTpw"},
		{name: "token first in the environment", env: env{url: "http://h", user: "u", password: "p", token: "t"},
			endpoint: "http://h/emails", authorization: "Bearer t"},
		{name: "given credentials first", env: env{token: "t"}, url: "http://h", opts: []Option{Basic("u", "p")},
			endpoint: "http://h/emails", authorization: "Basic dTpw"},
		{name: "given token first", env: env{url: "http://e", user: "u", password: "p"}, url: "http://h", opts: []Option{Token("t")},
			endpoint: "http://h/emails", authorization: "Bearer t"},
		{name: "empty is absent", env: env{token: "t"}, url: "http://h", opts: []Option{Basic("", "")},
			endpoint: "http://h/emails", authorization: "Bearer t"},
		{name: "password from the environment", env: env{token: "t", password: "p"}, url: "http://h", opts: []Option{Basic("u", "")},
			endpoint: "http://h/emails", authorization: "Basic dTpw"},
		{name: "IPv6", url: "http://[::1]:8080", opts: []Option{Token("t")}, endpoint: "http://[::1]:8080/emails", authorization: "Bearer t"},

		{name: "no URL", opts: []Option{Token("t")}, wrong: []string{"URL", url}},
		{name: "no credentials", url: "http://h", wrong: []string{user, password, token}},
		{name: "no password", env: env{token: "t"}, url: "http://h", opts: []Option{Basic("u", "")}, wrong: []string{"password", password}},
		{name: "no username", env: env{password: "p"}, url: "http://h", wrong: []string{"username", user}},
		{name: "both", url: "http://h", opts: []Option{Basic("u", "p"), Token("t")}, wrong: []string{"token", "password"}},
		{name: "scheme", url: "ftp://h", opts: []Option{Token("t")}, wrong: []string{"http"}},
		{name: "no scheme", url: "localhost:8080", opts: []Option{Token("t")}, wrong: []string{"http"}},
		{name: "no host", url: "http://:80/", opts: []Option{Token("t")}, wrong: []string{"host"}},
		{name: "user", url: "http://u:p@h", opts: []Option{Token("t")}, wrong: []string{"user"}},
		{name: "query", url: "http://h/?", opts: []Option{Token("t")}, wrong: []string{"query"}},
		{name: "fragment", url: "http://h/#", opts: []Option{Token("t")}, wrong: []string{"fragment"}},
		{name: "not a URL", url: "http://h:port", opts: []Option{Token("t")}, wrong: []string{"URL"}},
		{name: "line break", url: "http://h", opts: []Option{Token("t\r\nX: y")}, wrong: []string{"token"}},
		{name: "colon", url: "http://h", opts: []Option{Basic("u:v", "p")}, wrong: []string{"username", "colon"}},
		{name: "retries", url: "http://h", opts: []Option{Token("t"), WithRetries(-1)}, wrong: []string{"retries"}},
		{name: "timeout", url: "http://h", opts: []Option{Token("t"), WithTimeout(0)}, wrong: []string{"time-out"}},
		{name: "connect timeout", url: "http://h", opts: []Option{Token("t"), WithConnectTimeout(-1)}, wrong: []string{"time-out"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, name := range []string{url, user, password, token} {
				t.Setenv(name, test.env[name])
			}
			c, err := New(test.url, test.opts...)
			if test.wrong == nil {
				if err != nil || c.endpoint != test.endpoint || c.authorization != test.authorization {
					t.Errorf("%+v %v, want %s %s", c, err, test.endpoint, test.authorization)
				}
				return
			}
			var e *ConfigurationError
			if !errors.As(err, &e) {
				t.Fatalf("%v, want a *ConfigurationError", err)
			}
			for _, word := range test.wrong {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %q", err, word)
				}
			}
		})
	}
}

// Mistakes of the caller are found before any request, and carry the key.
func TestMistakes(t *testing.T) {
	s := serve(t, answering(202, acceptedBody))
	c, _ := connect(t, s.URL)
	for _, key := range []string{"", " a", "a ", "a\n", "ü", "a\x7f", strings.Repeat("k", 256)} {
		_, err := c.Send(background, email, WithIdempotencyKey(key))
		var e *ConfigurationError
		if !errors.As(err, &e) || e.IdempotencyKey != key {
			t.Errorf("key %q: %v", key, err)
		}
	}
	e := email
	e.Variables = map[string]any{"f": func() {}}
	_, err := c.Send(background, e, WithIdempotencyKey("k"))
	var wrong *ConfigurationError
	if !errors.As(err, &wrong) || IdempotencyKey(err) != "k" {
		t.Errorf("a function as a variable: %v", err)
	}
	if _, err := c.Get(background, ""); !errors.As(err, &wrong) {
		t.Errorf("no id: %v", err)
	}
	if s.calls() != 0 {
		t.Errorf("%d calls, want none", s.calls())
	}
	if _, err := c.Send(background, email, WithIdempotencyKey(strings.Repeat("k", 255))); err != nil {
		t.Errorf("the longest key: %v", err)
	}
}

func TestErrorsAsAndIs(t *testing.T) {
	s := serve(t, answering(402, refused("insufficient_credits")))
	c, _ := connect(t, s.URL)
	_, err := c.Send(background, email)
	err = fmt.Errorf("order 7: %w", err)
	var pointer *Error
	var value Error
	if !errors.As(err, &pointer) || !errors.As(err, &value) || value != *pointer || value.Status != 402 {
		t.Errorf("pointer %+v, value %+v", pointer, value)
	}
	if !errors.As(err, &Error{}) {
		t.Error("not an Error")
	}
	if !errors.Is(err, ErrInsufficientCredits) || errors.Is(err, ErrConflict) || errors.Is(err, ErrSignatureInvalid) {
		t.Error("the wrong code")
	}
	var connection *ConnectionError
	if errors.As(err, &connection) {
		t.Error("a connection error")
	}
	if got, want := value.Error(), "mailappliance: 402 insufficient_credits: no (request req_1)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRandom(t *testing.T) {
	low, high := 1.0, 0.0
	for i := 0; i < 1000; i++ {
		n := random()
		low, high = math.Min(low, n), math.Max(high, n)
	}
	if low < 0 || low > 0.1 || high < 0.9 || high >= 1 {
		t.Errorf("1000 numbers between %v and %v", low, high)
	}
}

func TestAttachments(t *testing.T) {
	path := t.TempDir() + "/report.txt"
	if err := os.WriteFile(path, []byte("from a path"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, answering(202, acceptedBody))
	c, _ := connect(t, s.URL)
	e := email
	e.Attachments = []Attachment{
		{Filename: "a.bin", Content: []byte{0, 255}},
		{Path: path},
		{Path: path, Filename: "named.txt"},
		{Filename: "s.png", Reader: strings.NewReader("from a reader"), ContentType: "image/png", ContentID: "logo"},
		{Filename: "empty"},
		{Filename: "empty.too", Reader: strings.NewReader("")},
	}
	if _, err := c.Send(background, e); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Attachments []map[string]string `json:"attachments"`
	}
	if err := json.Unmarshal([]byte(s.bodies[0]), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]string{
		{"filename": "a.bin", "content": "AP8="},
		{"filename": "report.txt", "content": "ZnJvbSBhIHBhdGg="},
		{"filename": "named.txt", "content": "ZnJvbSBhIHBhdGg="},
		{"filename": "s.png", "content": "ZnJvbSBhIHJlYWRlcg==", "content_type": "image/png", "content_id": "logo"},
		{"filename": "empty", "content": ""},
		{"filename": "empty.too", "content": ""},
	}
	if !reflect.DeepEqual(got.Attachments, want) {
		t.Errorf("%v, want %v", got.Attachments, want)
	}
	if e.Attachments[1].Content != nil {
		t.Error("the caller's email has changed")
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestAttachmentMistakes(t *testing.T) {
	c, _ := connect(t, "http://127.0.0.1:9")
	tests := []struct {
		attachment Attachment
		cause      error
	}{
		{Attachment{Path: t.TempDir() + "/missing"}, os.ErrNotExist},
		{Attachment{Filename: "a", Reader: brokenReader{}}, io.ErrUnexpectedEOF},
		{Attachment{Content: []byte("x")}, nil},
		{Attachment{Filename: "a", Content: []byte{}, Path: "b"}, nil},
		{Attachment{Filename: "\xff", Content: []byte("x")}, nil},
	}
	for _, test := range tests {
		e := email
		e.Attachments = []Attachment{test.attachment}
		_, err := c.Send(background, e)
		var wrong *ConfigurationError
		if !errors.As(err, &wrong) || test.cause != nil && !errors.Is(err, test.cause) {
			t.Errorf("%+v: %v", test.attachment, err)
		}
	}
}

// Text that JSON cannot carry is refused instead of sent altered.
func TestNotUTF8(t *testing.T) {
	const bad = "caf\xe9"
	tests := map[string]Email{
		"From":      {From: bad},
		"To":        {To: []string{"a", bad}},
		"Subject":   {Subject: bad},
		"HTML":      {HTML: bad},
		"Tags":      {Tags: []string{bad}},
		"Headers":   {Headers: map[string]string{"X-A": bad}},
		"Variables": {Variables: map[string]any{"a": bad}},
		"Metadata":  {Metadata: map[string]string{bad: "a"}},
	}
	for field, e := range tests {
		if _, err := e.load(); err == nil || !strings.HasPrefix(err.Message, field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if body, err := encode(Email{Subject: "\ufffd"}); err != nil || !strings.Contains(string(body), "\ufffd") {
		t.Errorf("U+FFFD itself: %s %v", body, err)
	}
}
