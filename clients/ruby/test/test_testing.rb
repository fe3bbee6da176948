# frozen_string_literal: true

require "helper"
require "mail_appliance/testing"

class TestTesting < LibraryTest
  include MailAppliance

  def setup
    @mail = Testing::FakeClient.new
  end

  def test_it_has_the_methods_of_the_client
    Client.public_instance_methods(false).each do |name|
      assert_equal Client.instance_method(name).parameters, @mail.method(name).parameters
    end
  end

  def test_messages_are_recorded
    file = Attachment.from_bytes("abc", filename: "a.txt")
    sent = @mail.send_email(**MESSAGE, cc: ["Ann <ANN@example.net>", "bob@example.net"], attachments: [file])
    assert_equal ["queued", 2, 2, 3, false],
                 [sent.status, sent.recipient_count, sent.credits_reserved, sent.attachments.first.size, sent.replayed]
    recorded = @mail.sent.first
    assert_equal [sent.id, sent.idempotency_key], [recorded.id, recorded.idempotency_key]
    assert_equal ["Hello", "YWJj"], [recorded.message[:subject], recorded.message[:attachments][0][:content]]
  end

  def test_batches_and_schedules
    messages = [MESSAGE, MESSAGE.merge(scheduled_at: "2030-01-02T03:04:05Z")]
    first, again = Array.new(2) { @mail.send_batch(messages, idempotency_key: "k") }
    assert_equal [2, 0, false, true, 2],
                 [first.accepted, first.refused, first.replayed?, again.replayed?, @mail.sent.size]
    assert_raises(IdempotencyConflict) { @mail.send_batch([MESSAGE], idempotency_key: "k") }
    moved = @mail.reschedule("msg_2", Time.utc(2031))
    assert_equal ["queued", "scheduled", Time.utc(2031)], [moved.status, moved.recipients[0].status, moved.scheduled_at]
    assert_equal "failed", @mail.cancel("msg_2").status
    %w[msg_1 msg_2].each { |id| assert_raises(Conflict) { @mail.cancel(id) } }
    assert_raises(NotFound) { @mail.cancel("msg_9") }
    wrong = assert_raises(ConfigurationError) { @mail.send_batch([MESSAGE, { text: "\xff" }]) }
    assert_includes wrong.message, "emails[1].text"
    assert_match(/\Aauto_/, wrong.idempotency_key)
  end

  def test_results_follow_the_address
    {
      "ann@example.net" => "delivered", "Bounce <bounce+1@example.net>" => "failed", "fail@example.net" => "failed",
      %w[ann@example.net bounce@example.net] => "partial"
    }.each do |to, status|
      message = @mail.wait(@mail.send_email(**MESSAGE, to: to).id)
      assert_equal status, message.status
    end
    bounced = @mail.get("msg_2").recipients.first
    assert_equal ["bounce+1@example.net", "bounced", 550], [bounced.email, bounced.status, bounced.last_smtp_code]
    assert_raises(NotFound) { @mail.get("msg_9") }
  end

  def test_keys
    first = @mail.send_email(**MESSAGE, idempotency_key: "k")
    again = @mail.send_email(**MESSAGE, idempotency_key: "k")
    assert_equal [first.id, false, true], [again.id, first.replayed, again.replayed]
    assert_raises(IdempotencyConflict) { @mail.send_email(**MESSAGE, subject: "Other", idempotency_key: "k") }
    assert_equal 1, @mail.sent.size
  end

  def test_scripted_failures
    @mail.fail_next(402, "insufficient_credits")
    assert_raises(InsufficientCredits) { @mail.send_email(**MESSAGE) }
    @mail.fail_next(429, "rate_limited", retry_after: 3600)
    assert_equal 3600, assert_raises(RateLimited) { @mail.send_email(**MESSAGE) }.retry_after
    @mail.fail_next(503, "temporary_failure", retry_after: 20)
    @mail.lose_next
    refute_predicate @mail.send_email(**MESSAGE), :replayed?
    @mail.lose_next(accepted: true)
    assert_predicate @mail.send_email(**MESSAGE), :replayed?
    assert_equal 2, @mail.sent.size
    assert_raises(ConnectionFailed) do
      mail = Testing::FakeClient.new(retries: 0)
      mail.lose_next
      mail.send_email(**MESSAGE)
    end
  end

  def test_mistakes_are_found_as_by_the_client
    assert_raises(ConfigurationError) { @mail.send_email(**MESSAGE, text: "\xFF") }
    assert_empty @mail.sent
  end
end
