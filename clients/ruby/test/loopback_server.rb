# frozen_string_literal: true

require "openssl"
require "socket"

# An HTTP server on a loopback port, in threads. Its script has one entry for each request in the order of arrival:
# the bytes to answer with, or a proc that is given the socket and returns whether the connection stays open. After the
# script it answers every request with 202.
class LoopbackServer
  Received = Struct.new(:verb, :path, :headers, :body, :connection)

  RESET = lambda do |socket|
    socket.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
    false
  end
  HANG = lambda do |_socket|
    sleep
  end

  def self.answer(status, body, headers = {})
    lines = headers.map { |name, value| "#{name}: #{value}\r\n" }
    "HTTP/1.1 #{status} Status\r\nContent-Length: #{body.bytesize}\r\n#{lines.join}\r\n#{body}"
  end

  def self.close_after(bytes)
    lambda do |socket|
      socket.write(bytes)
      false
    end
  end

  # The bytes one by one, for ever.
  def self.trickle(head, byte)
    lambda do |socket|
      socket.write(head)
      loop do
        socket.write(byte)
        sleep 0.05
      end
    end
  end

  attr_reader :url

  # +tls+: an OpenSSL::SSL::SSLContext.
  def initialize(script, tls: nil)
    @script = script
    @requests = []
    @connections = 0
    @lock = Mutex.new
    @listener = TCPServer.new("127.0.0.1", 0)
    @url = "#{tls ? "https" : "http"}://127.0.0.1:#{@listener.addr[1]}"
    @listener = OpenSSL::SSL::SSLServer.new(@listener, tls).tap { |server| server.start_immediately = false } if tls
    @threads = [Thread.new { accept }]
  end

  def requests
    @lock.synchronize { @requests.dup }
  end

  def connections
    @lock.synchronize { @connections }
  end

  def stop
    @listener.close
    @lock.synchronize { @threads.dup }.each { |thread| thread.kill.join }
  end

  private

  def accept
    loop do
      socket = @listener.accept
      @lock.synchronize do
        number = @connections += 1
        @threads << Thread.new { converse(socket, number) }
      end
    end
  rescue IOError, SystemCallError
    nil # stopped
  end

  def converse(socket, number)
    socket.accept if socket.is_a?(OpenSSL::SSL::SSLSocket)
    nil while serve(socket, number)
  rescue IOError, SystemCallError, OpenSSL::SSL::SSLError
    nil # the client has gone
  ensure
    socket.close
  end

  def serve(socket, number)
    request = read(socket, number) or return false
    step = @lock.synchronize do
      @requests << request
      @script.shift
    end
    return step.call(socket) if step.respond_to?(:call)

    socket.write(step || self.class.answer(202, '{"id":"msg_1","status":"queued"}'))
    true
  end

  def read(socket, number)
    verb, path = socket.gets&.split
    return unless path

    headers = {}
    while (line = socket.gets) && line != "\r\n"
      name, value = line.chomp.split(": ", 2)
      headers[name.downcase] = value
    end
    Received.new(verb, path, headers, socket.read(headers["content-length"].to_i), number)
  end
end
