# frozen_string_literal: true

require "helper"

# The planning core alone: no I/O, time and randomness are arguments.
class TestPlan < LibraryTest
  include MailAppliance

  NOW = Time.utc(2026, 11, 16, 12, 0, 0)

  def step(outcome, retries: 3, failed: 0, random: 0.5, key: "k")
    call(retries, idempotency_key: key, failed: failed).after(outcome, random: random, now: NOW, elapsed: 0)
  end

  def call(retries = 3, **options)
    Plan::Call.new(retries: retries, timeout: 30, **options)
  end

  def answer(status, body, headers = {})
    Answer.new(status: status, headers: headers, body: body.is_a?(String) ? body : JSON.generate(body))
  end

  def refusal(status, code, headers = {})
    answer(status, { error: "Refused", code: code, request_id: "req_1" }, headers)
  end

  def lost(retryable: true)
    Failure.new(message: "lost", retryable: retryable, cause: EOFError.new)
  end

  def test_success_with_an_id_is_returned
    [200, 202, 299].each do |status|
      accepted = answer(status, { id: "msg_1", x: 1 })
      assert_equal Plan::Return.new({ "id" => "msg_1", "x" => 1 }, accepted), step(accepted)
    end
  end

  def test_success_without_an_object_with_an_id_is_an_error
    ["", "[]", "null", "{}", '{"id":5}', '{"id":null}', "<html>", "{", "\xFF", "[" * 200].each do |body|
      failed = step(answer(202, body))
      assert_instance_of Plan::Raise, failed, body
      assert_instance_of ApiError, failed.error
      assert_equal 202, failed.error.status
      assert_nil failed.error.code
    end
  end

  def test_which_answers_are_retried
    [[429, "rate_limited"], [429, "warmup_limited"], [429, nil], [503, "service_unavailable"],
     [503, "temporary_failure"], [503, "unheard_of"], [409, "idempotency_in_progress"]].each do |status, code|
      assert_instance_of Plan::Retry, step(refusal(status, code)), [status, code]
    end
    [[400, "invalid_request"], [401, "unauthorized"], [402, "insufficient_credits"], [403, "forbidden"],
     [404, "not_found"], [409, "conflict"], [409, "idempotency_conflict"], [413, "payload_too_large"],
     [500, "internal_error"], [500, "idempotency_in_progress"], [502, nil], [504, nil], [301, nil], [307, nil],
     [202, "rate_limited"], [418, "idempotency_in_progress"]].each do |status, code|
      assert_instance_of Plan::Raise, step(refusal(status, code)), [status, code]
    end
  end

  def test_retries_end
    state = call(3)
    3.times { state = state.after(lost, random: 0, now: NOW, elapsed: 0).state }
    assert_instance_of Plan::Raise, state.after(lost, random: 0, now: NOW, elapsed: 0)
    assert_instance_of Plan::Raise, step(lost, retries: 0)
    assert_instance_of Plan::Raise, step(refusal(503, "temporary_failure"), retries: 0)
    assert_equal "temporary_failure", step(refusal(503, "temporary_failure"), failed: 3).error.code
  end

  def test_a_state_is_not_changed
    state = call(1)
    2.times { assert_instance_of Plan::Retry, state.after(lost, random: 0, now: NOW, elapsed: 0) }
  end

  def test_a_lost_connection_is_connection_failed_with_its_cause_and_key
    failed = step(lost, failed: 3)
    assert_instance_of ConnectionFailed, failed.error
    assert_equal ["lost", "k"], [failed.error.message, failed.error.idempotency_key]
    assert_instance_of EOFError, failed.cause
  end

  def test_a_failure_that_may_not_be_repeated_is_raised_at_once
    assert_instance_of ConnectionFailed, step(lost(retryable: false)).error
  end

  def test_pauses_without_retry_after_have_full_jitter
    limits = [0.5, 1, 2, 4, 8, 8, 8]
    limits.each_with_index do |limit, failed|
      [0.0, 0.25, 0.999].each do |random|
        assert_in_delta limit * random, step(lost, retries: 9, failed: failed, random: random).seconds
      end
    end
  end

  def test_pauses_with_retry_after_are_up_to_a_tenth_longer
    [["0", 0], ["1", 1], [" 7 ", 7], ["30", 30]].each do |value, seconds|
      [0.0, 0.5].each do |random|
        pause = step(refusal(429, "rate_limited", "retry-after" => value), random: random).seconds
        assert_in_delta seconds * (1 + (random / 10)), pause
      end
    end
  end

  def test_retry_after_as_a_date
    date = refusal(503, "temporary_failure", "retry-after" => (NOW + 20).httpdate)
    assert_in_delta 21, step(date, random: 0.5).seconds
    past = refusal(503, "temporary_failure", "retry-after" => (NOW - 20).httpdate)
    assert_in_delta 0, step(past).seconds
    assert_equal 3600, step(refusal(503, "x", "retry-after" => (NOW + 3600).httpdate)).error.retry_after
  end

  def test_a_long_retry_after_is_raised_at_once
    ["31", "3600", "9" * 40].each do |value|
      failed = step(refusal(429, "rate_limited", "retry-after" => value))
      assert_instance_of RateLimited, failed.error
      assert_equal value.to_i, failed.error.retry_after
    end
  end

  def test_a_retry_after_that_cannot_be_read_is_none
    ["", "soon", "-1", "1.5", "1e3", "Mon, 99 Nov 2026 12:00:00 GMT"].each do |value|
      assert_in_delta 0.25, step(refusal(429, "rate_limited", "retry-after" => value)).seconds
      assert_nil step(refusal(429, "rate_limited", "retry-after" => value), retries: 0).error.retry_after
    end
  end

  def test_errors_that_are_not_retried_have_their_retry_after_too
    assert_equal 5, step(refusal(402, "insufficient_credits", "retry-after" => "5")).error.retry_after
  end

  def test_every_code_has_its_class
    ApiError::BY_CODE.each do |code, type|
      assert_equal code.split("_").map(&:capitalize).join, type.name.split("::").last
      failed = step(refusal(400, code)).error
      assert_instance_of type, failed
      assert_equal [400, code, "Refused", "req_1", "k"],
                   [failed.status, failed.code, failed.message, failed.request_id, failed.idempotency_key]
    end
    assert_equal 15, ApiError::BY_CODE.size
  end

  def test_an_unknown_code_has_the_base_class
    failed = step(refusal(418, "teapot")).error
    assert_instance_of ApiError, failed
    assert_equal [418, "teapot", "Refused"], [failed.status, failed.code, failed.message]
  end

  def test_an_answer_that_is_no_error_object
    failed = step(answer(502, "<html>#{"x" * 5000}", "x-request-id" => "req_2")).error
    assert_instance_of ApiError, failed
    assert_equal [502, nil, "req_2"], [failed.status, failed.code, failed.request_id]
    assert_match(/\A502: <html>x+\z/, failed.message)
    assert_operator failed.message.size, :<, 250
    ['{"error":"x"}', '{"code":"not_found"}', '{"error":1,"code":2,"request_id":3}', "\xFF\xFE".b].each do |body|
      failed = step(answer(500, body)).error
      assert_nil failed.code
      assert_nil failed.request_id
      assert failed.message.start_with?("500: ") && failed.message.valid_encoding?
    end
  end

  def seen(status)
    answer(200, { id: "msg_1", status: status })
  end

  def wait(limit: 60, retries: 3)
    Plan::Wait.new(call(retries), limit: limit)
  end

  def after(state, outcome, elapsed)
    state.after(outcome, random: 0.5, now: NOW, elapsed: elapsed)
  end

  def timed_out(step, status)
    assert_instance_of WaitTimeout, step.error
    status ? assert_equal(status, step.error.last_message.status) : assert_nil(step.error.last_message)
  end

  def test_wait_returns_final_messages
    %w[delivered partial failed].each do |status|
      assert_equal({ "id" => "msg_1", "status" => status }, after(wait(limit: 0), seen(status), 99).object)
    end
  end

  def test_wait_pauses_grow_and_end_with_the_time
    state = wait
    elapsed = 0
    pauses = []
    while (step = after(state, seen("queued"), elapsed)).is_a?(Plan::Retry)
      pauses << step.seconds
      elapsed += step.seconds
      state = step.state
    end
    assert_equal [0.5, 0.75, 1.125], pauses.first(3)
    assert_equal 10, pauses.max
    assert_in_delta 60, elapsed
    timed_out(step, "queued")
  end

  def test_wait_goes_on_with_an_unknown_status
    assert_instance_of Plan::Retry, after(wait, seen("resting"), 0)
  end

  def test_wait_retries_each_call_by_itself
    state = wait(retries: 1)
    3.times do
      again = after(state, lost, 0)
      assert_in_delta 0.25, again.seconds
      state = after(again.state, seen("queued"), 0).state
    end
    again = after(state, lost, 0)
    assert_instance_of ConnectionFailed, after(again.state, lost, 0).error
    assert_instance_of NotFound, after(state, refusal(404, "not_found"), 0).error
  end

  def test_wait_does_not_retry_past_its_end
    timed_out(after(wait, lost, 59.9), nil)
    state = after(wait, seen("queued"), 0).state
    timed_out(after(state, refusal(503, "temporary_failure", "retry-after" => "20"), 45), "queued")
    assert_instance_of Plan::Retry, after(state, refusal(503, "temporary_failure", "retry-after" => "20"), 30)
  end

  def test_an_attempt_that_the_end_of_the_wait_has_cut_short
    timed_out(after(wait(retries: 0), lost, 60), nil)
    assert_instance_of ConnectionFailed, after(wait(retries: 0), lost, 59).error
    assert_instance_of ConnectionFailed, after(wait, lost(retryable: false), 60).error
    assert_instance_of NotFound, after(wait, refusal(404, "not_found"), 60).error
  end

  def test_the_time_of_an_attempt
    assert_equal 30, call.timeout(elapsed: 99)
    assert_equal [30, 30, 20, 1, 1], [0, 30, 40, 59.5, 99].map { |elapsed| wait.timeout(elapsed: elapsed) }
  end
end
