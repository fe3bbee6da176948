"""A domain below its DNS zone: the page merges SPF, and leads with the problem when DNS breaks."""

from tests.e2e.dashboard.browser import Browser
from tests.e2e.dashboard.stage import Stage
from tests.fakes.dns import zone_text

SOA = ["amy.ns.cloudflare.com. dns.cloudflare.com. 1 10000 2400 604800 1800"]
SPF = "v=spf1 include:_spf.other.test ~all"


def test_broken_dns_of_a_verified_domain_is_found_and_corrected_in_two_clicks(stage: Stage, browser: Browser) -> None:
    """One click on the domain shows the verdict and what to publish; one on "Check now" shows that it is right."""
    account = stage.account()
    domain = "mail.zone.example"
    stage.world.publish("mail.example.com", A=["192.0.2.25"])
    stage.world.publish("zone.example", SOA=SOA, NS=["amy.ns.cloudflare.com.", "bob.ns.cloudflare.com."])
    stage.world.publish("_spf.other.test", TXT=['"v=spf1 ip4:192.0.2.99 -all"'])
    for record in stage.ask(account, "POST", "/v1/domains", {"domain": domain})["records"]:
        stage.world.publish(record["name"], **{record["type"]: [zone_text(record["value"])]})
    stage.ask(account, "POST", f"/v1/domains/{domain}/verify")
    stage.world.publish(domain, TXT=[f'"{SPF}"'])  # what the shop's other mail needs, and not ours
    stage.ask(account, "GET", f"/v1/domains/{domain}")

    browser.log_in(account.email)
    browser.go("Domains")
    browser.see("DNS problem", "td")
    browser.see(domain, "a").click()
    browser.see("1 problem: Gmail may reject mail.", "b")
    browser.see("hosted by Cloudflare")
    link = browser.one("//main//a[normalize-space()='Open Cloudflare']").get_attribute("href")
    assert link == "https://dash.cloudflare.com/?to=/:account/zone.example/dns/records"
    first = browser.script("""return [...document.querySelector(".dns tbody tr").cells].map((each) =>
        [...each.querySelectorAll("code, b")].map((code) => code.textContent))""")
    merged = "v=spf1 include:_spf.other.test a:mail.example.com ~all"
    assert first == [["SPF"], ["mail"], [SPF], [merged]]
    assert browser.script("return document.querySelector('.dns mark').textContent") == "a:mail.example.com"
    browser.picture("domain")

    stage.world.publish(domain, TXT=[f'"{merged}"'])
    browser.click("Check now")
    browser.until(lambda: "problem" not in browser.text(), "the new verdict")
    browser.see("Verified: you can send from this domain.")
    assert browser.forbidden() == []
