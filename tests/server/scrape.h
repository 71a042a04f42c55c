// A scrape in Prometheus' text format, parsed strictly.
#ifndef HYDRANT_TESTS_SERVER_SCRAPE_H_
#define HYDRANT_TESTS_SERVER_SCRAPE_H_

#include <map>
#include <string>

namespace hydrant {

struct Scrape {
  std::map<std::string, std::string> types;  // by family name: "gauge", "counter", "histogram"
  std::map<std::string, double> series;      // by name{label="value",...} as in the line

  // Adds a test failure and returns NaN if there is no such series.
  double operator[](const std::string& name) const;
  // Over all series of the family.
  double Sum(const std::string& family) const;
};

// Adds a test failure for every malformed line.
Scrape ParseScrape(const std::string& text);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_SCRAPE_H_
