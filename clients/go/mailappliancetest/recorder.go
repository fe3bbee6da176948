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
	"strings"
	"sync"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
)

// Recorder is a [mailappliance.Client] that delivers nothing and records
// every send. As in the sandbox, a recipient's local part decides the result:
// "bounce…" is bounced, "fail…" is failed, and any other is delivered. A key
// that was used before gets the appliance's answer: a replay for the same
// email, a conflict for another. The recipients of a scheduled email are
// "scheduled" until the test cancels it.
//
// Goroutines can share a Recorder.
type Recorder struct {
	*mailappliance.Client

	mu       sync.Mutex
	sent     []*record
	answers  map[string]answered // by key
	failures []func() (*http.Response, error)
}

var _ mailappliance.Mailer = (*Recorder)(nil)

// Sent is one email that a [Recorder] has accepted.
type Sent struct {
	ID             string
	Email          mailappliance.Email // with the content of its attachments read
	IdempotencyKey string
}

// record is an accepted email and its state.
type record struct {
	Sent
	isCancelled bool
}

// answered is a request with a key, and its answer.
type answered struct {
	body   string
	answer any
}

// NewRecorder makes a recorder. Its client does not retry, so that a failure
// is seen at once; options change that.
func NewRecorder(opts ...mailappliance.Option) *Recorder {
	r := &Recorder{answers: map[string]answered{}}
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
	sent := make([]Sent, len(r.sent))
	for i, item := range r.sent {
		sent[i] = item.Sent
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
	path := strings.Split(request.URL.Path, "/")
	if key := request.Header.Get("Idempotency-Key"); key != "" {
		return t.accept(key, body, path[len(path)-1] == "batch")
	}
	if request.Method == http.MethodGet && len(path) > 3 {
		return refusal(http.StatusMethodNotAllowed, "invalid_request"), nil
	}
	return t.message(request.Method, path, body)
}

// accept answers POST /emails and POST /emails/batch.
func (t transport) accept(key string, body []byte, isBatch bool) (*http.Response, error) {
	if earlier, ok := t.answers[key]; ok {
		if earlier.body != string(body) {
			return refusal(http.StatusConflict, "idempotency_conflict"), nil
		}
		response := respond(http.StatusAccepted, earlier.answer)
		response.Header.Set("Idempotent-Replayed", "true")
		return response, nil
	}
	var batch mailappliance.Batch
	var err error
	if isBatch {
		err = json.Unmarshal(body, &batch)
	} else {
		batch.Emails = make([]mailappliance.Email, 1)
		err = json.Unmarshal(body, &batch.Emails[0])
	}
	if err != nil {
		return nil, err
	}
	result := mailappliance.SentBatch{Accepted: len(batch.Emails), RequestID: requestID, Results: []mailappliance.BatchItem{}}
	var answer any
	for i, email := range batch.Emails {
		sent := Sent{ID: fmt.Sprintf("msg_%d", len(t.sent)+1), Email: email, IdempotencyKey: key}
		t.Recorder.sent = append(t.Recorder.sent, &record{Sent: sent})
		count := len(recipients(email))
		result.Results = append(result.Results, mailappliance.BatchItem{
			Index: i, ID: sent.ID, Status: "queued", RecipientCount: count, CreditsReserved: count,
		})
		answer = queued(sent)
	}
	if isBatch {
		answer = result
	}
	t.answers[key] = answered{string(body), answer}
	return respond(http.StatusAccepted, answer), nil
}

// queued is the answer to an email that is accepted.
func queued(sent Sent) mailappliance.Sent {
	email, count := sent.Email, len(recipients(sent.Email))
	return mailappliance.Sent{
		ID: sent.ID, Status: "queued", Source: "api", RequestID: requestID,
		From: email.From, To: email.To, Cc: email.Cc, Bcc: email.Bcc, ReplyTo: email.ReplyTo,
		Subject: email.Subject, BillingStatus: "reserved", RecipientCount: count, CreditsReserved: count,
		Headers: email.Headers, Tags: email.Tags, Attachments: attachments(email), ScheduledAt: scheduledAt(email),
	}
}

func scheduledAt(email mailappliance.Email) time.Time {
	if email.ScheduledAt == nil {
		return time.Time{}
	}
	return *email.ScheduledAt
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

// message answers GET and PATCH /emails/{id}, and POST /emails/{id}/cancel.
func (t transport) message(method string, path []string, body []byte) (*http.Response, error) {
	for _, item := range t.sent {
		if path[2] != item.ID {
			continue
		}
		if method == http.MethodGet {
			return respond(http.StatusOK, state(*item)), nil
		}
		if item.Email.ScheduledAt == nil || item.isCancelled {
			return refusal(http.StatusConflict, "conflict"), nil
		}
		if method == http.MethodPost {
			item.isCancelled = true
		} else if err := json.Unmarshal(body, &item.Email); err != nil {
			return nil, err
		}
		return respond(http.StatusOK, state(*item)), nil
	}
	return refusal(http.StatusNotFound, "not_found"), nil
}

// state is an email as the appliance shows it now.
func state(item record) mailappliance.Message {
	m := final(item.Sent)
	m.ScheduledAt, m.Metadata = scheduledAt(item.Email), item.Email.Metadata
	if m.ScheduledAt.IsZero() {
		return m
	}
	m.Status, m.BillingStatus = "queued", "reserved"
	recipient := mailappliance.Recipient{Status: "scheduled", BillingStatus: "reserved"}
	if item.isCancelled {
		m.Status, m.BillingStatus = "failed", "released"
		recipient = mailappliance.Recipient{Status: "failed", BillingStatus: "released", LastSMTPResponse: "cancelled"}
	}
	for i, r := range m.Recipients {
		recipient.ID, recipient.Email = r.ID, r.Email
		m.Recipients[i] = recipient
	}
	return m
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
