# frozen_string_literal: true

require_relative "../mail_appliance"

module MailAppliance
  # For the tests of programs that send mail.
  module Testing
    # What a FakeClient was given: +message+ is the JSON object with symbols as names.
    Sent = Struct.new(:id, :message, :idempotency_key, keyword_init: true)

    # A Client without a network. It checks, encodes and plans retries as the real one does, never pauses, records
    # every accepted message in #sent, and answers as the appliance's sandbox: a recipient whose address begins with
    # `bounce` bounces, with `fail` fails, any other is delivered. Recipients of a scheduled message stay scheduled until
    # it is cancelled.
    #
    #   mail = MailAppliance::Testing::FakeClient.new
    #   Shop.new(mail).confirm(order)
    #   assert_equal ["ann@example.net"], mail.sent.map { |sent| sent.message[:to] }
    class FakeClient < Client
      def initialize(**options)
        super("http://mail-appliance.invalid", token: "fake", transport: Sandbox.new, **options)
      end

      # The accepted messages, oldest first.
      def sent
        @transport.sent
      end

      # The next request gets this error instead: fail_next(402, "insufficient_credits").
      def fail_next(status, code, retry_after: nil)
        headers = retry_after ? { "retry-after" => retry_after.to_s } : {}
        @transport.script(Sandbox.answer(status, { error: "scripted: #{code}", code: code }, headers))
      end

      # The connection of the next request is lost; the message was accepted nevertheless if +accepted+.
      def lose_next(accepted: false)
        @transport.script(Failure.new(message: "scripted: lost", retryable: true), accepted: accepted)
      end

      private

      def pause(_seconds); end
    end

    # The transport of FakeClient: the appliance's rules for keys, ids and results, in memory.
    class Sandbox
      def self.answer(status, object, headers = {})
        Answer.new(status: status, headers: headers, body: JSON.generate(object))
      end

      def initialize
        @lock = Mutex.new
        @sent = []
        @answers = {} # by key: the body of the request, and the answer
        @cancelled = []
        @script = []
      end

      def sent
        @lock.synchronize { @sent.dup }
      end

      def script(outcome, accepted: false)
        @lock.synchronize { @script << [outcome, accepted] }
      end

      def call(request, timeout:)
        @lock.synchronize do
          outcome, accepted = @script.shift
          answer = handle(request) if accepted || outcome.nil?
          outcome || answer
        end
      end

      def close; end

      private

      def handle(request)
        _, _, id, action = request.uri.path.split("/")
        key = request.headers["Idempotency-Key"]
        return refused(405, "invalid_request") if action && request.verb == "GET"
        return about(id, action || request.verb, request.body) unless key

        body, answer = @answers[key]
        return self.class.answer(202, answer, "idempotent-replayed" => "true") if body == request.body
        return refused(409, "idempotency_conflict") if body

        content = JSON.parse(request.body, symbolize_names: true)
        answer = id ? batch(content[:emails], key) : accepted(record(content, key))
        @answers[key] = [request.body, answer]
        self.class.answer(202, answer)
      end

      def record(message, key)
        @sent << Sent.new(id: "msg_#{@sent.size + 1}", message: message, idempotency_key: key).freeze
        @sent.last
      end

      def batch(messages, key)
        results = messages.each_with_index.map do |message, index|
          accepted(record(message, key)).slice(:id, :status, :recipient_count, :credits_reserved).merge(index: index)
        end
        { results: results, accepted: results.size, refused: 0, request_id: "req_batch" }
      end

      def refused(status, code)
        self.class.answer(status, { error: "refused: #{code}", code: code })
      end

      def accepted(sent)
        count = recipients(sent).size
        lists = %i[to cc bcc tags].to_h { |name| [name, Array(sent.message[name])] }
        files = Array(sent.message[:attachments]).map do |file|
          file.slice(:filename, :content_type, :content_id).merge(size: file[:content].unpack1("m0").bytesize)
        end
        {
          **sent.message.slice(:from, :reply_to, :subject, :headers, :scheduled_at), **lists, attachments: files,
          id: sent.id, status: "queued", source: "api", request_id: "req_#{sent.id}",
          billing_status: "reserved", recipient_count: count, credits_reserved: count
        }
      end

      def about(id, action, body)
        sent = @sent.find { |each| each.id == id }
        return refused(404, "not_found") unless sent
        return refused(409, "conflict") if action != "GET" && (@cancelled.include?(id) || !sent.message[:scheduled_at])

        sent.message[:scheduled_at] = JSON.parse(body)["scheduled_at"] if action == "PATCH"
        @cancelled << id if action == "cancel"
        results = recipients(sent).map { |address| recipient(address, sent) }
        self.class.answer(200, {
          **sent.message.slice(:from, :subject, :scheduled_at, :metadata), id: id, source: "api", request_id: "req_#{id}",
          status: status(results.map { |result| result[:status] }), billing_status: "settled",
          recipient_count: results.size, credits_reserved: results.size, created_at: Time.now.utc.iso8601,
          recipients: results
        })
      end

      def recipients(sent)
        addresses = %i[to cc bcc].flat_map { |name| Array(sent.message[name]) }
        addresses.map { |address| address[/<([^<>]*)>\s*\z/, 1] || address }.uniq(&:downcase)
      end

      def recipient(address, sent)
        if sent.message[:scheduled_at]
          return { email: address, status: @cancelled.include?(sent.id) ? "failed" : "scheduled" }
        end

        status, code, reply =
          case address
          when /\Abounce/i then ["bounced", 550, "5.1.1 no such user"]
          when /\Afail/i then ["failed", 451, "4.3.0 try again later"]
          else ["delivered", 250, "2.0.0 accepted"]
          end
        { email: address, status: status, last_smtp_code: code, last_smtp_response: reply }
      end

      def status(results)
        return "queued" if results.include?("scheduled")
        return "delivered" if results.all?("delivered")

        results.include?("delivered") ? "partial" : "failed"
      end
    end
    private_constant :Sandbox
  end
end
