// Package mailappliancetest is for tests of code that sends email with package
// mailappliance.
//
// A [Recorder] is a real client whose requests end in memory: what it accepts,
// refuses and returns is what the client would. To see what the appliance
// itself does with a message, send it to an appliance in the sandbox.
package mailappliancetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
)

// Recorder is a [mailappliance.Client] that delivers nothing and records
// every send. As in the sandbox, a recipient's local part decides the result:
// "bounce…" is bounced, "fail…" is failed, and any other is delivered. A key
// that was used before gets the appliance's answer: a replay for the same
// email, a conflict for another.
//
// Goroutines can share a Recorder.
type Recorder struct {
	*mailappliance.Client

	mu       sync.Mutex
	accepted []accepted
	failures []func() (*http.Response, error)
}

var _ mailappliance.Mailer = (*Recorder)(nil)

// Sent is one email that a [Recorder] has accepted.
type Sent struct {
	ID             string
	Email          mailappliance.Email // with the content of its attachments read
	IdempotencyKey string
}

type accepted struct {
	Sent
	body string // of the request
}

// NewRecorder makes a recorder. Its client does not retry, so that a failure
// is seen at once; options change that.
func NewRecorder(opts ...mailappliance.Option) *Recorder {
	r := &Recorder{}
	opts = append([]mailappliance.Option{mailappliance.Token("recorder"), mailappliance.WithRetries(0)}, opts...)
	client, err := mailappliance.New("http://recorder.invalid", append(opts, mailappliance.WithTransport(transport{r}))...)
	if err != nil {
		panic(err) // an option of the caller's that is wrong
	}
	r.Client = client
	return r
}

// Sent returns the emails sent so far, in order.
func (r *Recorder) Sent() []Sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := make([]Sent, len(r.accepted))
	for i, a := range r.accepted {
		sent[i] = a.Sent
	}
	return sent
}

// FailNext makes one more of the next requests fail with a status and code of
// the interface, such as 402 and "insufficient_credits".
func (r *Recorder) FailNext(status int, code string) {
	r.fail(func() (*http.Response, error) { return refusal(status, code), nil })
}

// LoseNext makes one more of the next requests end without an answer. Its
// email is not recorded.
func (r *Recorder) LoseNext() {
	r.fail(func() (*http.Response, error) { return nil, errors.New("connection lost by the recorder") })
}

func (r *Recorder) fail(failure func() (*http.Response, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, failure)
}

// transport answers the requests of a recorder's client.
type transport struct{ *Recorder }

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	defer request.Body.Close()
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failures) > 0 {
		failure := t.failures[0]
		t.failures = t.failures[1:]
		return failure()
	}
	if request.Method == http.MethodPost {
		return t.accept(request.Header.Get("Idempotency-Key"), body)
	}
	return t.message(request.URL)
}

// accept answers POST /emails.
func (t transport) accept(key string, body []byte) (*http.Response, error) {
	for _, a := range t.accepted {
		if a.IdempotencyKey != key {
			continue
		}
		if a.body != string(body) {
			return refusal(http.StatusConflict, "idempotency_conflict"), nil
		}
		response := respond(http.StatusAccepted, queued(a.Sent))
		response.Header.Set("Idempotent-Replayed", "true")
		return response, nil
	}
	sent := Sent{ID: fmt.Sprintf("msg_%d", len(t.accepted)+1), IdempotencyKey: key}
	if err := json.Unmarshal(body, &sent.Email); err != nil {
		return nil, err
	}
	t.Recorder.accepted = append(t.Recorder.accepted, accepted{sent, string(body)})
	return respond(http.StatusAccepted, queued(sent)), nil
}

// queued is the answer to an email that is accepted.
func queued(sent Sent) mailappliance.Sent {
	email, count := sent.Email, len(recipients(sent.Email))
	return mailappliance.Sent{
		ID: sent.ID, Status: "queued", Source: "api", RequestID: requestID,
		From: email.From, To: email.To, Cc: email.Cc, Bcc: email.Bcc, ReplyTo: email.ReplyTo,
		Subject: email.Subject, BillingStatus: "reserved", RecipientCount: count, CreditsReserved: count,
		Headers: email.Headers, Tags: email.Tags, Attachments: attachments(email),
	}
}

func attachments(email mailappliance.Email) []mailappliance.AttachmentInfo {
	var infos []mailappliance.AttachmentInfo
	for _, a := range email.Attachments {
		infos = append(infos, mailappliance.AttachmentInfo{
			Filename: a.Filename, ContentType: a.ContentType, Size: len(a.Content), ContentID: a.ContentID,
		})
	}
	return infos
}

// message answers GET /emails/{id}.
func (t transport) message(u *url.URL) (*http.Response, error) {
	for _, a := range t.accepted {
		if u.Path == "/emails/"+a.ID {
			return respond(http.StatusOK, final(a.Sent)), nil
		}
	}
	return refusal(http.StatusNotFound, "not_found"), nil
}

// final is an email with the results of its recipients.
func final(sent Sent) mailappliance.Message {
	addresses := recipients(sent.Email)
	m := mailappliance.Message{
		ID: sent.ID, Status: "partial", Source: "api", RequestID: requestID, From: sent.Email.From,
		Subject: sent.Email.Subject, BillingStatus: "settled", RecipientCount: len(addresses),
		CreditsReserved: len(addresses), CreatedAt: at,
	}
	count := map[string]int{}
	for i, address := range addresses {
		recipient := result(address)
		recipient.ID = fmt.Sprintf("rcp_%d", i+1)
		count[recipient.Status]++
		m.Recipients = append(m.Recipients, recipient)
	}
	switch len(addresses) {
	case count["delivered"]:
		m.Status = "delivered"
	case count["bounced"]:
		m.Status, m.BillingStatus = "failed", "released"
	case count["bounced"] + count["failed"]:
		m.Status = "failed"
	}
	return m
}

func result(address string) mailappliance.Recipient {
	r := mailappliance.Recipient{Email: address, AttemptCount: 1, BillingStatus: "settled"}
	switch {
	case strings.HasPrefix(address, "bounce"):
		r.Status, r.BillingStatus, r.BouncedAt = "bounced", "released", at
		r.LastSMTPCode, r.LastSMTPResponse = 550, "5.1.1 user unknown"
	case strings.HasPrefix(address, "fail"):
		r.Status, r.LastSMTPCode, r.LastSMTPResponse = "failed", 451, "4.3.0 try again later"
	default:
		r.Status, r.DeliveredAt = "delivered", at
		r.LastSMTPCode, r.LastSMTPResponse = 250, "2.0.0 accepted"
	}
	return r
}

// recipients are the addresses of an email, each once, without names.
func recipients(email mailappliance.Email) []string {
	var unique []string
	seen := map[string]bool{}
	for _, list := range [][]string{email.To, email.Cc, email.Bcc} {
		for _, address := range list {
			if i := strings.LastIndex(address, "<"); i >= 0 {
				address = strings.TrimSuffix(address[i+1:], ">")
			}
			if folded := strings.ToLower(address); !seen[folded] {
				seen[folded] = true
				unique = append(unique, address)
			}
		}
	}
	return unique
}

const requestID = "req_recorder"

var at = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // every time a recorder tells

func refusal(status int, code string) *http.Response {
	return respond(status, map[string]string{"error": "refused by the recorder", "code": code, "request_id": requestID})
}

func respond(status int, object any) *http.Response {
	body, err := json.Marshal(object)
	if err != nil {
		panic(err) // none of the objects here can fail
	}
	return &http.Response{
		StatusCode: status,
		Header:     http.Header{"X-Request-Id": {requestID}},
		Body:       io.NopCloser(bytes.NewReader(body)),
	}
}
