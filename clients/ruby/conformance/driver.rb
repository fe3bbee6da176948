# frozen_string_literal: true

# The driver of clients/conformance/README.md: a line of JSON in, a line of JSON out, until the end of the input.

require "mail_appliance"

# Its public methods besides #answer are the commands.
class Driver
  SEND = %i[
    id status source request_id from to cc bcc subject billing_status recipient_count credits_reserved tags attachments
    scheduled_at idempotency_key replayed
  ].freeze

  ERROR = %i[status code message request_id retry_after idempotency_key].freeze

  def answer(command)
    public_send(command.delete("command"), **command.transform_keys(&:to_sym))
  rescue MailAppliance::Error => error
    { error: describe(error) }
  end

  def client(url: nil, **options)
    @client = MailAppliance::Client.new(url, **options)
    { ok: true }
  end

  def send(message:, **options)
    { result: send_result(message, **options) }
  end

  def send_batch(messages:, **options)
    batch = @client.send_batch(messages.map { |each| fields(each) }, **options)
    { result: batch.to_h.merge(results: batch.results.map(&:to_h)) }
  end

  def cancel(id:)
    { result: message(@client.cancel(id)) }
  end

  def reschedule(id:, **given)
    { result: message(@client.reschedule(id, scheduled(given))) }
  end

  def get(id:)
    { result: message(@client.get(id)) }
  end

  def wait(id:, timeout:)
    { result: message(@client.wait(id, timeout: timeout)) }
  end

  def parallel(message:, count:)
    threads = Array.new(count) do
      Thread.new do
        send_result(message)
      rescue MailAppliance::Error => error
        { error: describe(error) }
      end
    end
    { results: threads.map(&:value) }
  end

  def verify(body_base64:, header:, secrets:, now:, **options)
    event = MailAppliance.verify(body_base64.unpack1("m"), header, secrets, now: now, **options)
    received = event.received&.to_h&.merge(attachments: event.received.attachments&.map(&:to_h))
    { result: event.to_h.merge(created_at: timestamp(event.created_at), received: received) }
  end

  private

  def send_result(message, **options)
    sent = @client.send_email(**fields(message), **options)
    sent.to_h.slice(*SEND).merge(attachments: sent.attachments&.map(&:to_h), scheduled_at: timestamp(sent.scheduled_at))
  end

  def fields(message)
    fields = message.transform_keys(&:to_sym)
    fields[:attachments] &&= fields[:attachments].map { |each| attachment(**each.transform_keys(&:to_sym)) }
    fields.reject { |name, _| name == :scheduled_unix }.merge(scheduled_at: scheduled(fields))
  end

  def scheduled(given)
    given[:scheduled_unix] ? Time.at(given[:scheduled_unix]).utc : given[:scheduled_at]
  end

  def attachment(bytes_base64: nil, path: nil, stream_path: nil, **options)
    if path
      MailAppliance::Attachment.from_path(path, **options)
    elsif stream_path
      File.open(stream_path, "rb") { |stream| MailAppliance::Attachment.from_io(stream, **options) }
    else
      MailAppliance::Attachment.from_bytes(bytes_base64.unpack1("m"), **options)
    end
  end

  def message(message)
    recipients = message.recipients&.map do |each|
      each.to_h.merge(delivered_at: timestamp(each.delivered_at), bounced_at: timestamp(each.bounced_at))
    end
    message.to_h.merge(created_at: timestamp(message.created_at), scheduled_at: timestamp(message.scheduled_at),
                       recipients: recipients)
  end

  def timestamp(time)
    time&.iso8601(time.subsec.zero? ? 0 : 6)
  end

  def describe(error)
    fields = ERROR.to_h { |name| [name, error.respond_to?(name) ? error.public_send(name) : nil] }
    { class: error.class.name.split("::").last, **fields }
  end
end

$stdout.sync = true
driver = Driver.new
$stdin.each_line { |line| puts JSON.generate(driver.answer(JSON.parse(line))) }
